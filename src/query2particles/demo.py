"""The main job, end to end, on the embedded graph: train on a part of its facts, compare, answer, guess the rest.

A fifth of the facts of `atlas` are held out. What the others say is known; what a trained model adds are guesses, and
the facts that were held out tell which of them are true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from query2particles.answer import Answers, Ranked, ask, predict
from query2particles.calibration import CALIBRATION, RELIABILITY
from query2particles.config import configured, key_of
from query2particles.engine.exact import Batch, exact_answers_of
from query2particles.engine.method import Method
from query2particles.errors import UsageError
from query2particles.evaluate import compare
from query2particles.graph.folders import ATLAS
from query2particles.graph.graph import Graph
from query2particles.joined import PARTS, Joined, check_place, join, settings_of
from query2particles.joining import Effort
from query2particles.methods.baselines import baselines
from query2particles.planning import grown
from query2particles.plot import plot_training
from query2particles.presets import preset
from query2particles.query.algebra import Query, ground, nickname
from query2particles.query.names import Lexicon
from query2particles.query.rewrite import Unions
from query2particles.query.syntax import Syntax
from query2particles.query.text import format_path
from query2particles.run import JOINED, Run
from query2particles.train import validation_set
from query2particles.workload.labels import Labelled, Labels
from query2particles.workload.selection import drawn_queries

__all__ = [
    "EFFORT",
    "NAME",
    "PLOT",
    "QUESTIONS",
    "Drawn",
    "Guessed",
    "ask_all",
    "describe",
    "draw_all",
    "guess_all",
    "join_and_plot",
    "new_parts",
]

PLOT = "curve.png"
"""The picture of training in the run folder."""

NAME = "best (particles and links)"
"""What the tables of the demo call the joined run."""

EFFORT = Effort.within(400)
"""How many queries weigh the parts: some ten seconds of them."""

_PRESET = "demo"
"""What a run says of itself that this module made: the next demo may replace it."""

QUESTIONS: tuple[tuple[str, Syntax, str], ...] = (
    (
        "Where did the Turing Award laureates who are not Canadian graduate from?",
        "path",
        '("Turing Award".^award_received & !Canada.^citizen_of).graduated_from',
    ),
    (
        "Which capitals lie in countries that border both Germany and Italy?",
        "logic",
        "?city : exists ?country. capital_of(?city, ?country) & borders(?country, Germany) & borders(?country, Italy)",
    ),
    (
        "Which currencies are used where French or Portuguese is spoken, but not in Africa?",
        "sparql",
        """SELECT DISTINCT ?currency WHERE {
  ?country :uses_currency ?currency .
  { ?country :speaks :French } UNION { ?country :speaks :Portuguese }
  MINUS { ?country :on_continent :Africa }
}""",
    ),
    (
        "In which African countries is French spoken?",
        "path",
        "French.^speaks & Africa.^on_continent",
    ),
)
"""Four questions in three syntaxes, whose answers a person can judge."""


@dataclass(frozen=True)
class Drawn:
    """Fresh queries of one shape: how many, their easy and hard answers, and one of them as text."""

    shape: str
    queries: int
    easy: int
    hard: int
    example: str


@dataclass(frozen=True)
class Guessed:
    """What a model adds to the known answers of a question, and what the held-out facts say to both."""

    words: str
    known: Answers
    taken_back: int
    """Known answers that held-out facts contradict: what a question excludes may be among them."""
    missing: int
    """Answers that only held-out facts support."""
    guesses: tuple[tuple[Ranked, bool], ...]
    """The best guesses, each with whether it is one of the missing answers."""

    def as_json(self) -> dict[str, Any]:
        return {
            "words": self.words,
            **self.known.as_json(),
            "taken_back": self.taken_back,
            "missing": self.missing,
            "guesses": [
                {"name": guess.name, "label": guess.label, "score": round(guess.score, 4), "confirmed": confirmed}
                for guess, confirmed in self.guesses
            ],
        }


def ask_all(graph: Graph, k: int) -> Iterator[tuple[str, str, Answers]]:
    """Each question in words, as text, and with what the training facts answer."""
    for words, syntax, text in QUESTIONS:
        yield words, text, ask(graph, text, syntax=syntax, k=k, split="train")


def draw_all(graph: Graph, *, count: int, seed: int, progress: Callable[[int], object] | None = None) -> Labelled:
    """Test queries of all fourteen shapes, with their answers."""
    return drawn_queries(graph, "test", most=count, seed=seed, progress=progress)


def describe(graph: Graph, batch: Batch, labels: Mapping[Query, Labels]) -> Iterator[Drawn]:
    """What was drawn, shape by shape."""
    lexicon = Lexicon(graph)
    for shape, ids in batch.items():
        yield Drawn(
            shape=nickname(shape),
            queries=len(ids),
            easy=int(labels[shape].easy.sizes.sum()),
            hard=int(labels[shape].hard.sizes.sum()),
            example=format_path(ground(shape, ids[0].tolist()), lexicon),
        )


def new_parts(folder: Path, graph: Graph, settings: Sequence[str] = ()) -> dict[str, Run]:
    """The parts of a demo, with changes to their settings; an earlier demo in the folder gives way, nothing else."""
    _remove_earlier(folder)
    check_place(folder)
    found = {}
    for part, method in PARTS.items():
        own = settings_of(part, settings)
        config = grown(configured(preset(method, "small"), None, own), graph, "cpu", set(map(key_of, own)))
        found[part] = Run.create(folder / part, replace(config, preset=_PRESET), graph, ATLAS)
    return found


def _remove_earlier(folder: Path) -> None:
    """What an earlier demo left: a joined run or its parts; or, of earlier versions, one run."""
    parts = [folder / part for part in PARTS]
    runs = [Run.open(one) for one in (folder, *parts) if (one / "config.json").is_file()]
    if not runs or any(run.config.preset != _PRESET for run in runs):
        return
    own = (JOINED, PLOT, CALIBRATION, RELIABILITY)
    if runs[0].folder != folder:
        others = sorted(path.name for path in folder.iterdir() if path not in parts and path.name not in own)
        if others:
            raise UsageError(f"{folder} holds {others[0]!r}, which would be lost; name a new or an empty folder")
    for run in runs:  # all of them before anything is removed
        run.check_removable(own)
    for name in own:
        (folder / name).unlink(missing_ok=True)
    for run in runs:
        run.remove()
        if run.folder != folder:
            run.folder.rmdir()


def join_and_plot(
    folder: Path, parts: Mapping[str, Run], graph: Graph, *, progress: Callable[[int], object] = lambda _: None
) -> Joined:
    """Join trained parts, and draw their curves into the folder, beside what baselines reach on the same queries."""
    training = parts["vectors"].config.training
    validation = validation_set(graph, training)
    assert validation is not None, "atlas has validation facts"
    joined, _ = join(folder, parts["vectors"], parts["links"], graph, validation, effort=EFFORT, progress=progress)
    compared = compare(baselines(graph.at("train")), *validation, unions=training.unions)
    plot_training(
        {part: run.read_trace() for part, run in parts.items()},
        folder / PLOT,
        title=f"The parts of a joined run on {graph.name}, trained in {joined.cost()[0]:,.0f} s, each alone",
        references={name: found.percentages(2) for name, found in compared.items()},
    )
    return joined


def guess_all(graph: Graph, model: Method[Any], k: int, *, unions: Unions = "native") -> Iterator[Guessed]:
    """For each question what the training facts say, and the `k` best guesses of a model."""
    for words, _, known in ask_all(graph, k):
        before, after = (set(exact_answers_of(graph.at(split), known.query)[0].tolist()) for split in ("train", "test"))
        guesses = predict(graph, model, known.query, k=k, split="train", guesses_only=True, unions=unions)
        yield Guessed(
            words,
            known,
            taken_back=len(before - after),
            missing=len(after - before),
            guesses=tuple((guess, guess.entity_id in after) for guess in guesses),
        )
