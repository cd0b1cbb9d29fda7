"""Answers first-order-logic questions over incomplete knowledge graphs.

    from query2particles import open_graph, ask

    graph = open_graph("atlas")
    for answer in ask(graph, '("Turing Award".^award_received & !Canada.^citizen_of).graduated_from').answers:
        print(answer.label)

Names are loaded when they are first used, so that `import query2particles` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from query2particles.answer import Answer, Answered, Question, Ranked, Reasoner, ask
    from query2particles.engine.exact import exact_answers
    from query2particles.errors import Query2ParticlesError
    from query2particles.graph.folders import open_graph
    from query2particles.graph.graph import Graph
    from query2particles.graph.load import ImportOptions, import_graph
    from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union
    from query2particles.query.names import Lexicon
    from query2particles.query.syntax import format_query, parse_query
    from query2particles.workload.labels import label
    from query2particles.workload.sample import sample_shape

__version__ = "0.1.0"

_HOMES = {
    "answer": ("Answer", "Answered", "Question", "Ranked", "Reasoner", "ask"),
    "engine.exact": ("exact_answers",),
    "errors": ("Query2ParticlesError",),
    "graph.folders": ("open_graph",),
    "graph.graph": ("Graph",),
    "graph.load": ("ImportOptions", "import_graph"),
    "query.algebra": ("Anchor", "Complement", "Intersect", "Project", "Query", "Union"),
    "query.names": ("Lexicon",),
    "query.syntax": ("format_query", "parse_query"),
    "workload.labels": ("label",),
    "workload.sample": ("sample_shape",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Anchor",
    "Answer",
    "Answered",
    "Complement",
    "Graph",
    "ImportOptions",
    "Intersect",
    "Lexicon",
    "Project",
    "Query",
    "Query2ParticlesError",
    "Question",
    "Ranked",
    "Reasoner",
    "Union",
    "ask",
    "exact_answers",
    "format_query",
    "import_graph",
    "label",
    "open_graph",
    "parse_query",
    "sample_shape",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
