"""The Python face: a trained model that is asked, explained, measured and saved.

    import query2particles as q2p

    graph = q2p.open_graph("atlas")
    model = q2p.fit(graph, minutes=1)
    answers = model.ask("French.^speaks", k=10)
    model.explain(answers[3])
    model.save("runs/mine")          # q2p.load("runs/mine") brings it back

Everything is named as people name it: entities, relations and facts by their names or labels, never by ids.
"""

from __future__ import annotations

import shutil
import signal
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from query2particles.answer import Answer, Answers, Guesses, Method, Only, Question, Reasoner
from query2particles.errors import UsageError
from query2particles.evaluate import Evaluation
from query2particles.files import new_folder
from query2particles.graph.folders import open_graph
from query2particles.graph.frames import data_frame
from query2particles.graph.graph import Graph, Split
from query2particles.query.expression import Expression, text_of
from query2particles.verdict import Verdict
from query2particles.wording import html_table

if TYPE_CHECKING:
    from query2particles.discover import Discovery
    from query2particles.evidence import Evidence
    from query2particles.run import Run

__all__ = ["Asked", "Discoveries", "Measured", "Model", "fit", "load"]

Asked: TypeAlias = str | Expression
"""A question: a text in any syntax, or an expression such as graph["France"].follow("borders")."""

_QUERIES = 300
"""Of each shape, where a model is measured by drawn queries."""


class Discoveries(tuple["Discovery", ...]):
    """Facts that are probably missing, the likeliest first."""

    __slots__ = ()

    def to_pandas(self) -> Any:
        """A data frame: head, relation, tail, probability."""
        return data_frame(("head", "relation", "tail", "probability"), self._rows())

    def _rows(self) -> list[tuple[Any, ...]]:
        return [(one.head.label, one.relation.label, one.tail.label, one.probability) for one in self]

    def _repr_html_(self) -> str:
        rows = [tuple("" if cell is None else str(cell) for cell in row) for row in self._rows()]
        return html_table("facts that are probably missing", ("head", "relation", "tail", "probability"), rows)


@dataclass(frozen=True, repr=False)
class Measured:
    """How well a model ranks what it was not trained on, beside methods that learn nothing, where these were asked."""

    name: str
    model: Evaluation
    baselines: Mapping[str, Evaluation]
    verdict: Verdict | None

    @property
    def mrr(self) -> float:
        """The mean reciprocal rank over all shapes."""
        return self.model.average("all").get("mrr", 0.0)

    def to_pandas(self) -> Any:
        """A data frame with a row for each shape: its queries, and the mean reciprocal rank of each method."""
        methods = {self.name: self.model, **self.baselines}
        rows = [
            (shape, found.queries, *(_mrr(one, shape) for one in methods.values()))
            for shape, found in self.model.shapes.items()
        ]
        return data_frame(("shape", "queries", *methods), rows)

    def __repr__(self) -> str:
        words = f"MRR {100 * self.mrr:.1f} % over {len(self.model.shapes)} shapes"
        return f"Measured({self.name}: {words}{'' if self.verdict is None else f', {self.verdict.grade}'})"


def _mrr(evaluation: Evaluation, shape: str) -> float | None:
    return evaluation.shapes[shape].means.get("mrr") if shape in evaluation.shapes else None


class Model:
    """What `fit` makes and `load` opens: a trained run with its graph."""

    def __init__(self, reasoner: Reasoner, run: Run, device: str = "cpu", temporary: Path | None = None) -> None:
        self.graph, self.run, self.reasoner, self.device = reasoner.graph, run, reasoner, device
        self._forget: weakref.finalize[..., Model] | None = None
        if temporary is not None:  # a run that is not saved goes with the model
            self._forget = weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """Where the run is: until it is saved, perhaps a temporary folder."""
        return self.run.folder

    @property
    def method(self) -> str:
        return self.run.config.method

    def __repr__(self) -> str:
        place = "not saved" if self._forget is not None else f"in {str(self.folder)!r}"
        return f"Model({self.method} of {self.graph.name!r}, {place})"

    def ask(
        self,
        question: Asked,
        k: int = 10,
        *,
        method: Method = "both",
        only: Only | None = None,
        minimum_probability: float = 0.0,
        guesses: Guesses = "auto",
    ) -> Answers:
        """The answers of a question, known ones and guesses, the likeliest first.

        Guesses are folded away (`Answers.folded`) where the known answers look complete, unless `guesses` is "always"
        or `only` is "predicted".
        """
        text = text_of(question, self.graph)
        return self.reasoner.answer(Question(text, None, k, method, only, minimum_probability, guesses))

    def explain(self, question: Answer | Asked, answer: str | None = None) -> Evidence:
        """Why an entity is an answer, or why not: the best facts, stored and predicted.

        Takes one of the answers, `model.explain(answers[3])`, or a question and an entity by name,
        `model.explain("French.^speaks", "Haiti")`.
        """
        if isinstance(question, Answer):
            if question.query is None or answer is not None:
                raise UsageError("explain takes an answer as `ask` gave it, or a question and the name of an entity")
            return self.reasoner.explain(question.query, question.entity_id)
        if not isinstance(answer, str):
            raise UsageError(
                "explain takes an answer, or a question and the name of an entity: explain('French.^speaks', 'Haiti')"
            )
        entity = self.reasoner.lexicon.entity(answer)
        return self.reasoner.explain(text_of(question, self.graph), entity)

    def probability(self, facts: Sequence[tuple[str, str, str]]) -> list[float]:
        """How likely facts are true, each a head, a relation and a tail by name; 1 where they are stored."""
        return self.reasoner.probability(facts)

    def discover(self, *, relation: str | None = None, entity: str | None = None, k: int = 20) -> Discoveries:
        """The likeliest facts that are missing: of a relation, of an entity, or of both."""
        from query2particles.show import progress_bar

        with progress_bar("asking", None) as progress:
            found = self.reasoner.discover(relation=relation, entity=entity, k=k, progress=progress)
        return Discoveries(found)

    def evaluate(
        self,
        *,
        split: Literal["valid", "test"] = "test",
        queries: int = _QUERIES,
        baselines: bool = False,
        alone: bool = False,
        seed: int = 0,
        progress: bool = True,
    ) -> Measured:
        """Rank answers that need facts which the model has not seen: `queries` of each of the fourteen shapes.

        With `baselines`, methods that learn nothing rank the same, and a verdict says whether the model is any good.
        With `alone`, entities of wrong kinds and a question's own entity compete, too.
        """
        from query2particles.engine.plausible import Plausible
        from query2particles.evaluate import compare, evaluate
        from query2particles.methods.baselines import baselines as all_baselines
        from query2particles.show import progress_bar
        from query2particles.training.fit import SILENT
        from query2particles.verdict import verdict
        from query2particles.workload.selection import drawn_queries

        training = self.run.config.training
        if training.split in ("test", split):
            raise UsageError(f"{self.folder} was trained on {training.facts}: what is asked for would be known")
        self.run.check_facts(self.graph)
        if not self.graph.facts()[split]:
            raise UsageError(f"{self.graph.name} holds no {split} facts back: make it with splits=(0.1, 0.1)")
        batch, labels = drawn_queries(self.graph, split, most=queries, seed=seed)
        plausible = None if alone else Plausible(self.graph.at(training.known))
        model = self.run.model(self.graph, self.device)
        total = sum(map(len, batch.values()))
        bar = progress_bar if progress else SILENT.bar
        with bar("ranking", total) as count:
            own = evaluate(model, batch, labels, unions=training.unions, plausible=plausible, progress=count)
        if not baselines:
            return Measured(self.method, own, {}, None)
        methods = all_baselines(self.graph.at(training.known))
        with bar("asking the baselines", total * len(methods)) as count:
            others = compare(methods, batch, labels, plausible=plausible, progress=count)
        return Measured(self.method, own, others, verdict(own, others))

    def save(self, folder: str | Path) -> None:
        """Keep the run in a folder of its own, from which `load` opens it again."""
        from query2particles.joined import open_run

        target = Path(folder)
        if target.exists():
            raise UsageError(f"{target} is there already: name a new folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = shutil.ignore_patterns(".lock", ".*.partial-*")
        with new_folder(target, replaces=lambda _: False) as partial:
            shutil.copytree(self.folder, partial, dirs_exist_ok=True, ignore=unfinished)
        self.run = self.reasoner.run = open_run(target)
        if self._forget is not None:
            self._forget()
            self._forget = None


def fit(
    graph: Graph | str | Path,
    method: str = "best",
    *,
    minutes: float | None = None,
    folder: str | Path | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: bool = True,
) -> Model:
    """Train a model on a graph.

    `minutes` chooses sizes and updates that fit the time, the graph and the machine; otherwise the `preset` does:
    small on a CPU, default on a GPU. `settings` change single ones ({"dimension": 64}). The run lives in `folder`, or
    in a temporary one until `Model.save`. With a folder, Ctrl-C keeps what was trained, and for `best` the same call
    goes on.
    """
    from query2particles.training.device import device_named
    from query2particles.training.fit import InterruptedTrainingError

    begin = time.perf_counter()
    opened = graph if isinstance(graph, Graph) else open_graph(graph)
    where = device_named(device)
    temporary = Path(mkdtemp(prefix="query2particles-")) if folder is None else None
    target = Path(folder) if folder is not None else Path(str(temporary)) / "run"
    try:
        run = _fitted(opened, method, target, minutes, preset, settings or {}, seed, where, begin, progress=progress)
        return Model(Reasoner.open(run.folder, device=where), run, where, temporary)
    except BaseException as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, InterruptedTrainingError) and error.signal == signal.SIGINT:
            kept = str(error) if temporary is None else "training was stopped; name a folder to keep what is trained"
            raise KeyboardInterrupt(kept) from error
        raise


def _fitted(
    graph: Graph,
    method: str,
    folder: Path,
    minutes: float | None,
    preset: str | None,
    settings: Mapping[str, Any],
    seed: int,
    device: str,
    begin: float,
    *,
    progress: bool,
) -> Run:
    from query2particles.run import GRAPH
    from query2particles.show import listener
    from query2particles.training.fit import BEST, SILENT, Fit, fit_best, fit_one

    source = graph.source
    if source is None:
        source = str(folder / GRAPH)
        if not (folder / GRAPH).exists():
            folder.mkdir(parents=True, exist_ok=True)
            graph.save(folder / GRAPH)
    own = [*(f"{key}={value}" for key, value in settings.items()), f"seed={seed}"]
    start = preset or ("small" if device == "cpu" else "default")
    wanted = Fit(graph, source, folder, start, own, device, minutes, begin)
    heard = listener() if progress else SILENT
    return fit_best(wanted, heard)[0] if method == BEST else fit_one(wanted, method, heard)


def load(folder: str | Path, *, graph: str | Path | None = None, device: str = "auto", split: Split = "test") -> Model:
    """The model in a run folder; `graph` says where its graph is, if it has moved.

    `split` is the level of facts that count as stored: all of them, unless held-out facts are to be guessed.
    """
    from query2particles.training.device import device_named

    where = device_named(device)
    reasoner = Reasoner.open(folder, graph=None if graph is None else str(graph), device=where, split=split)
    if reasoner.run is None:
        raise UsageError(f"{folder} is a graph, not a run: fit(graph, folder=...) makes one; ask(graph, ...) asks it")
    return Model(reasoner, reasoner.run, where)
