"""Answers first-order-logic questions over incomplete knowledge graphs.

    import query2particles as q2p

    graph = q2p.Graph.from_pandas(frame)               # or q2p.open_graph("facts.tsv"), q2p.open_graph("atlas")
    q2p.ask(graph, "France.borders & !Germany.borders")          # what stored facts say
    model = q2p.fit(graph, minutes=5)
    answers = model.ask("French.^speaks", k=10)        # known answers, and guesses with probabilities
    model.explain(answers[3])
    model.save("runs/mine")                            # q2p.load("runs/mine")

Names are loaded when they are first used, so that `import query2particles` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from query2particles.answer import Answer, Answers, Question, Ranked, Reasoner, ask
    from query2particles.answering.model import Discoveries, Measured, Model, fit, load
    from query2particles.engine.exact import exact_answers
    from query2particles.errors import Query2ParticlesError
    from query2particles.graph.folders import open_graph
    from query2particles.graph.graph import Graph
    from query2particles.graph.load import ImportOptions, import_graph
    from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union
    from query2particles.query.expression import Expression
    from query2particles.query.names import Lexicon
    from query2particles.query.syntax import format_query, parse_query
    from query2particles.workload.labels import label
    from query2particles.workload.sample import sample_shape

__version__ = "0.1.0"

_HOMES = {
    "answer": ("Answer", "Answers", "Question", "Ranked", "Reasoner", "ask"),
    "answering.model": ("Discoveries", "Measured", "Model", "fit", "load"),
    "engine.exact": ("exact_answers",),
    "errors": ("Query2ParticlesError",),
    "graph.folders": ("open_graph",),
    "graph.graph": ("Graph",),
    "graph.load": ("ImportOptions", "import_graph"),
    "query.algebra": ("Anchor", "Complement", "Intersect", "Project", "Query", "Union"),
    "query.expression": ("Expression",),
    "query.names": ("Lexicon",),
    "query.syntax": ("format_query", "parse_query"),
    "workload.labels": ("label",),
    "workload.sample": ("sample_shape",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Anchor",
    "Answer",
    "Answers",
    "Complement",
    "Discoveries",
    "Expression",
    "Graph",
    "ImportOptions",
    "Intersect",
    "Lexicon",
    "Measured",
    "Model",
    "Project",
    "Query",
    "Query2ParticlesError",
    "Question",
    "Ranked",
    "Reasoner",
    "Union",
    "ask",
    "exact_answers",
    "fit",
    "format_query",
    "import_graph",
    "label",
    "load",
    "open_graph",
    "parse_query",
    "sample_shape",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
