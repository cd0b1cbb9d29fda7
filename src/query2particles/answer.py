"""Answering questions in any syntax: text → query → ranked answers with names, probabilities and evidence.

A `Reasoner` answers from a trained run, or from a graph alone. Of each answer it says whether stored facts name it
(`known`), whether they name it but a missing fact may take it back, as complements allow (`supported`), or whether it
is a guess (`predicted`). Its probability is the chance that it is an answer, for the question as it was asked
(`calibration`). Of every question it says how many answers are probably missing; where that is less than half an
answer, the known ones look complete, and guesses are folded away.

`ask` and `predict` are the same for one question: the exact answers, and what a method thinks of a query.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args, overload

import numpy as np
import numpy.typing as npt

from query2particles.engine.exact import exact_answers
from query2particles.engine.sets import Sets
from query2particles.errors import Query2ParticlesError, ShardsLostError, UsageError
from query2particles.graph.folders import open_graph
from query2particles.graph.frames import data_frame
from query2particles.graph.graph import Graph, Split
from query2particles.query.algebra import Query, abstract, has_complement, nickname
from query2particles.query.expression import Expression, text_of
from query2particles.query.names import Lexicon
from query2particles.query.rewrite import Unions
from query2particles.query.syntax import SYNTAXES, Syntax, format_query, parse_query
from query2particles.wording import expectation, html_table, percentage

if TYPE_CHECKING:
    from query2particles.assignments import Assignment
    from query2particles.calibration import Calibration, Judge
    from query2particles.discover import Discovery
    from query2particles.engine.method import Method as Model
    from query2particles.engine.plausible import Plausible
    from query2particles.engine.table import Search
    from query2particles.evidence import Evidence
    from query2particles.ranking import Candidates, Contexts, Ranking
    from query2particles.run import Run
    from query2particles.searched import SearchedRanking, Searching

__all__ = [
    "Answer",
    "Answers",
    "MapPoint",
    "Method",
    "ParticleMap",
    "Question",
    "Ranked",
    "Reasoner",
    "Status",
    "ask",
    "predict",
]

Method: TypeAlias = Literal["exact", "neural", "both", "best", "fast"]
"""Stored facts alone; the model's ranking alone; or the model's ranking beside what stored facts say: by all parts of a
joined run, as `both` does too, or by its vectors alone."""

Status: TypeAlias = Literal["known", "supported", "predicted"]
Only: TypeAlias = Literal["known", "predicted"]
Guesses: TypeAlias = Literal["auto", "always"]
"""Whether guesses are folded away where the known answers look complete, or always shown."""

_HALF_AN_ANSWER = 0.5
"""Where fewer answers are expected to be missing, the known ones look complete."""

_REMEMBERED = 2048
_LONGEST_REMEMBERED = 500
"""How many questions stay parsed, and how many characters those may have: memory is bounded whatever is asked."""

_COPIES = 8
"""Of the scores of questions that are ranked together, at the peak: so much smaller are their groups."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One entity that answers a question."""

    entity_id: int
    name: str
    label: str
    query: Query | None = field(default=None, repr=False, compare=False, kw_only=True)
    """What it answers."""


@dataclass(frozen=True, slots=True)
class Ranked(Answer):
    """An entity as a method ranks it."""

    score: float
    probability: float | None
    """That it is an answer; None where nothing was calibrated."""
    status: Status
    particle: int | None
    """Which particle has the best inner product with it; None where the method has none."""

    @property
    def known(self) -> bool:
        """Whether stored facts say that it is an answer; otherwise it is a guess."""
        return self.status != "predicted"


@dataclass(frozen=True)
class Question:
    """A question and how it is to be answered."""

    text: str
    syntax: Syntax | None = None
    k: int = 10
    method: Method = "both"
    only: Only | None = None
    minimum_probability: float = 0.0
    guesses: Guesses = "auto"
    """With `auto`, guesses are folded away where the known answers look complete, unless only guesses are wanted."""


@dataclass(frozen=True, repr=False)
class Answers(Sequence[Answer]):
    """A question and what answers it, best first; exact answers by their labels. A sequence of them."""

    question: str
    query: Query
    canonical: str
    shape: str
    method: Method
    total: int
    """How many follow from stored facts."""
    answers: tuple[Answer | Ranked, ...]
    warning: str | None = None
    search: Mapping[str, Any] | None = None
    """How the best were found, unless all entities were scored at once."""
    expected_more: float | None = None
    """How many answers that stored facts do not name are expected; None where nothing was calibrated."""
    folded: tuple[Ranked, ...] = ()
    """Guesses that are not among the answers, since the known ones look complete."""

    @property
    def complete(self) -> bool | None:
        """Whether the known answers look complete: less than half an answer is expected beside them."""
        return None if self.expected_more is None else self.expected_more < _HALF_AN_ANSWER

    def __len__(self) -> int:
        return len(self.answers)

    @overload
    def __getitem__(self, place: int) -> Answer | Ranked: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Answer | Ranked, ...]: ...
    def __getitem__(self, place: int | slice) -> Answer | Ranked | tuple[Answer | Ranked, ...]:
        return self.answers[place]

    def __repr__(self) -> str:
        return f"Answers({self.canonical!r}, {len(self)} listed, {self.summary})"

    @property
    def summary(self) -> str:
        """How many answers are known, and how many more are expected, in words."""
        if self.expected_more is None:
            return f"{self.total:,} known"
        return expectation(self.total, self.expected_more, complete=bool(self.complete)).rstrip(".")

    def to_pandas(self) -> Any:
        """A data frame with a row for each answer: name, label, status, probability, score."""
        return data_frame(_COLUMNS, self._rows())

    def to_json(self) -> str:
        """The answers as a JSON document."""
        return json.dumps(self.as_json(), ensure_ascii=False)

    def _rows(self) -> list[tuple[Any, ...]]:
        return [tuple(one[key] for key in _COLUMNS) for one in self._listed(self.answers, 1)]

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        rows = [
            (label, status, "" if p is None else percentage(p, certain=status == "known"))
            for _, label, status, p, _ in self._rows()
        ]
        return html_table(f"{self.canonical}: {self.summary}", ("answer", "status", "probability"), rows)

    def as_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "query": self.canonical,
            "shape": self.shape,
            "method": self.method,
            "total": self.total,
            "expected_more": None if self.expected_more is None else round(self.expected_more, 3),
            "complete": self.complete,
            "answers": self._listed(self.answers, 1),
            "folded": self._listed(self.folded, 1 + len(self.answers)),
            **({"warning": self.warning} if self.warning else {}),
            **({"search": dict(self.search)} if self.search else {}),
        }

    def _listed(self, answers: Sequence[Answer | Ranked], first: int) -> list[dict[str, Any]]:
        return [
            {"rank": rank, "name": answer.name, "label": answer.label, **self._judged(answer)}
            for rank, answer in enumerate(answers, start=first)
        ]

    def _judged(self, answer: Answer | Ranked) -> dict[str, Any]:
        if isinstance(answer, Ranked):
            score, probability = round(answer.score, 4), answer.probability
            status, particle = answer.status, answer.particle
        else:
            status = _status_of_known(self.query)
            score, probability, particle = None, 1.0 if status == "known" else None, None
        rounded = None if probability is None else round(probability, 4)
        return {"score": score, "probability": rounded, "status": status, "particle": particle}


_COLUMNS = ("name", "label", "status", "probability", "score")
"""What a data frame of answers has."""


@dataclass(frozen=True, slots=True)
class MapPoint:
    """An answer in the plane."""

    answer: Ranked
    x: float
    y: float


@dataclass(frozen=True)
class ParticleMap:
    """The answers of a question and the particles that found them, in the plane.

    Embeddings and particles are brought to length 1, as their directions decide; the plane is that of their two
    principal components, and `variance` the share of the variance that each shows.
    """

    answered: Answers
    points: tuple[MapPoint, ...]
    particles: tuple[tuple[float, float], ...]
    variance: tuple[float, float]

    def as_json(self) -> dict[str, Any]:
        answers = self.answered.as_json()["answers"]
        found = [point.answer.particle for point in self.points]
        return {
            "question": self.answered.question,
            "query": self.answered.canonical,
            "shape": self.answered.shape,
            "answers": [
                {
                    **{key: entry[key] for key in ("name", "label")},
                    "x": round(point.x, 4),
                    "y": round(point.y, 4),
                    **{key: entry[key] for key in ("particle", "status", "probability", "rank")},
                }
                for entry, point in zip(answers, self.points, strict=True)
            ],
            "particles": [
                {"particle": number, "x": round(x, 4), "y": round(y, 4), "answers": found.count(number)}
                for number, (x, y) in enumerate(self.particles)
            ],
            "variance": [round(share, 4) for share in self.variance],
        }


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A question that was understood."""

    query: Query
    canonical: str
    shape: Query
    ids: tuple[int, ...]


_Chosen: TypeAlias = tuple[int, float, float | None, Status]
"""An answer before it has a name: entity, score, probability, status."""


class _Judged(NamedTuple):
    """Of the questions of one shape."""

    probabilities: npt.NDArray[np.float64]  # (n, k) of the best open entities
    missing: npt.NDArray[np.float64]  # (n,) answers that are expected beside the known ones


@dataclass(frozen=True)
class _Row:
    """One question of a ranking."""

    ranking: Ranking | SearchedRanking
    row: int

    @property
    def nodes(self) -> list[Sets]:
        return [sets.rows(self.row, self.row + 1) for sets in self.ranking.nodes]

    @property
    def contexts(self) -> Contexts:
        return self.ranking.contexts[self.row : self.row + 1]


class Reasoner:
    """Answers questions over one graph, with a trained model or from stored facts alone.

    `split` is the level of the graph whose facts count as stored: all of them, unless held-out facts are to be guessed.
    Threads may share it: nothing changes but a bounded memory of parsed questions.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        model: Model[Any] | None = None,
        run: Run | None = None,
        calibration: Calibration | None = None,
        split: Split = "test",
        unions: Unions = "native",
        fast: Reasoner | None = None,
        search: Search | None = None,
    ) -> None:
        self.fast = fast
        """Of a joined run: the same with its vectors alone."""
        self.search = search
        """What finds the best entities; without it, all of them are scored at once."""
        self.graph, self.lexicon, self.split = graph, Lexicon(graph), split
        self.run, self.model, self.calibration, self.unions = run, model, calibration, unions
        self._remembered = lru_cache(_REMEMBERED)(self._parsed)

    @staticmethod
    def open(
        path: str | Path,
        *,
        graph: str | None = None,
        device: str = "cpu",
        split: Split = "test",
        searching: Searching | None = None,
    ) -> Reasoner:
        """Of a run folder, or of a graph, which only has exact answers. `graph` says where a run's graph has moved."""
        folder = Path(path)
        try:
            opened = open_graph(path)
        except UsageError as error:
            from query2particles.run import was_begun  # heavy, so not before it is needed

            if not was_begun(folder):
                raise UsageError(f"no run (q2p train makes one), and no graph either: {error}") from error
            from query2particles.calibration import read_calibration
            from query2particles.joined import Joined, open_run
            from query2particles.methods.guided import Guided
            from query2particles.methods.joint import Joint
            from query2particles.methods.registry import attach_stored
            from query2particles.searched import Searching, model_for, search_for

            run = open_run(folder)
            own = run.graph(graph)
            searching = searching or Searching()

            def reasoner(run: Run, model: Any, search: Search | None, fast: Reasoner | None = None) -> Reasoner:
                return Reasoner(
                    own,
                    model=model,
                    run=run,
                    calibration=read_calibration(run),
                    split=split,
                    unions=run.config.training.unions,
                    fast=fast,
                    search=search,
                )

            model = model_for(run, own, device, searching)
            attach_stored(model, own.at(split))
            if isinstance(run, Joined) and isinstance(model, Guided):
                # The calibration is that of all parts together; what a search of few entities gives has none.
                fast = reasoner(run.vectors, model.vectors, model.search)
                unions = run.config.training.unions
                return Reasoner(own, model=model, run=run, split=split, unions=unions, fast=fast)
            if isinstance(run, Joined) and isinstance(model, Joint):
                vectors = model.vectors
                return reasoner(
                    run, model, None, reasoner(run.vectors, vectors, search_for(run.vectors, vectors, searching, graph))
                )
            return reasoner(run, model, search_for(run, model, searching, graph))
        if graph is not None:
            raise UsageError(f"{path} is a graph itself; leave out the other one ({graph})")
        if searching is not None and (searching.by == "index" or searching.shards):
            raise UsageError(f"{path} is a graph, and only a run is searched: leave out --search index and --cluster")
        return Reasoner(opened, split=split)

    @cached_property
    def plausible(self) -> Plausible:
        """What can answer at all, as far as the stored facts tell."""
        from query2particles.engine.plausible import Plausible

        return Plausible(self.graph.at(self.split))

    @cached_property
    def judge(self) -> Judge | None:
        """What says how likely guesses are; None where nothing was calibrated."""
        from query2particles.calibration import Judge

        if self.calibration is None or self.model is None:
            return None
        return Judge(self.calibration, self.model, self.graph.at(self.split), self.plausible)

    def prepare(self) -> None:
        """Find out what the first question would wait for: what is plausible, and what walks say."""
        if self.model is not None:
            _ = self.plausible.kinds.threshold
        for one in (self, self.fast):
            if one is not None and one.judge is not None:
                one.judge.features.prepare()

    def probability(self, facts: Sequence[tuple[str, str, str]]) -> list[float]:
        """How likely facts are true: head, relation and tail by name; 1 where they are stored."""
        from query2particles.engine.ranks import scoring

        if self.judge is None or self.model is None:
            raise UsageError(
                "facts are judged by a trained run that was calibrated: name one (q2p train GRAPH --out RUN), or "
                "q2p calibrate RUN"
            )
        if not facts:
            return []
        lexicon = self.lexicon
        rows = [
            (lexicon.entity(head), lexicon.relation(relation), lexicon.entity(tail)) for head, relation, tail in facts
        ]
        with scoring(self.model):
            found: list[float] = self.judge.facts(*np.array(rows, dtype=np.int64).T).tolist()
        return found

    def parse(self, text: str, syntax: Syntax | None = None) -> Query:
        """The query that a text asks."""
        return self._understood(text, syntax).query

    def answer(self, question: Question | str) -> Answers:
        """The answers of one question."""
        (found,) = self.answer_many([_as_question(question)])
        if isinstance(found, Query2ParticlesError):
            raise found
        return found

    def answer_many(self, questions: Sequence[Question]) -> list[Answers | Query2ParticlesError]:
        """The answers of many, executed together; an error takes the place of the question that it is about."""
        found: list[Answers | Query2ParticlesError | None] = [None] * len(questions)
        exact: list[tuple[int, Question, _Parsed]] = []
        ranked: list[tuple[int, Question, _Parsed]] = []
        fast: dict[int, Question] = {}
        for number, question in enumerate(questions):
            if question.method == "fast" and self.fast is not None:
                fast[number] = question
                continue
            try:
                self._check(question)
                parsed = self._understood(question.text, question.syntax)
            except Query2ParticlesError as error:
                found[number] = error
                continue
            (exact if question.method == "exact" or self.model is None else ranked).append((number, question, parsed))
        alone = [one for one in ranked if one[1].method == "neural"]
        beside = [one for one in ranked if one[1].method != "neural"]
        for number, one in [*self._exact(exact), *self._ranked(alone, None), *self._ranked(beside, self.plausible)]:
            found[number] = one
        if self.fast is not None and fast:
            found_fast = self.fast.answer_many([replace(question, method="both") for question in fast.values()])
            for number, one in zip(fast, found_fast, strict=True):
                found[number] = replace(one, method="fast") if isinstance(one, Answers) else one
        return [one for one in found if one is not None]

    def explain(self, question: Question | str | Query, entity: int, *, threshold: float = 0.5) -> Evidence:
        """Why an entity answers a question, or why it does not: the best facts, stored and predicted, as a tree."""
        from query2particles.evidence import find_evidence

        if not 0 < threshold <= 1:
            raise UsageError(f"a threshold is above 0 and at most 1, not {threshold}")
        text, parsed = self._asked_of(question, entity)
        return find_evidence(
            self.graph,
            parsed.query,
            entity,
            question=text,
            canonical=parsed.canonical,
            model=self.model,
            judge=self.judge,
            split=self.split,
            unions=self.unions,
            threshold=threshold,
        )

    def assignment(self, question: Question | str | Query, entity: int) -> Assignment:
        """What the variables of a question are to the model where the entity is its answer, if it searches for such."""
        from query2particles.assignments import find_assignment

        _, parsed = self._asked_of(question, entity)
        return find_assignment(self.graph, self.model, parsed.query, entity)

    def _asked_of(self, question: Question | str | Query, entity: int) -> tuple[str, _Parsed]:
        """The text of a question about an entity, and what it means."""
        if not 0 <= entity < len(self.graph.entities):
            raise UsageError(f"there is no entity {entity}: there are {len(self.graph.entities):,}")
        if isinstance(question, Question | str):
            asked = _as_question(question)
            return asked.text, self._understood(asked.text, asked.syntax)
        parsed = _parsed_query(question, self.lexicon)
        return parsed.canonical, parsed

    def map(self, question: Question | str) -> ParticleMap:
        """The answers of a question in the plane, each beside the particle that found it."""
        from query2particles.engine.particles import particles_of
        from query2particles.engine.ranks import scoring
        from query2particles.engine.table import Table

        asked = _as_question(question)
        if self.fast is not None:  # which has particles
            return self.fast.map(replace(asked, method="both" if asked.method in ("best", "fast") else asked.method))
        if self.model is None or not Table.fits(self.model):
            raise UsageError("a map needs a trained run whose method has particles; name one in place of a graph")
        if asked.method == "exact":
            raise UsageError("a map shows what a model ranks; ask with the method both or neural")
        answered = self.answer(replace(asked, guesses="always"))  # a map shows what a model ranks
        parsed = self._understood(asked.text, asked.syntax)
        with scoring(self.model):
            ids = np.array([parsed.ids], dtype=np.int64)
            particles = particles_of(self.model, {parsed.shape: ids}, self.unions)[parsed.shape]
            ranked = [one for one in answered.answers if isinstance(one, Ranked)]
            table = Table.of(self.model).vectors
            embeddings = table[[one.entity_id for one in ranked]].double().cpu().numpy()
            vectors = np.concatenate([embeddings, particles[0].double().cpu().numpy()])
        plane, variance = _plane(vectors)
        places = [(float(x), float(y)) for x, y in plane]
        return ParticleMap(
            answered,
            tuple(MapPoint(one, *place) for one, place in zip(ranked, places, strict=False)),
            tuple(places[len(ranked) :]),
            variance,
        )

    def discover(
        self,
        *,
        relation: str | None = None,
        entity: str | None = None,
        k: int = 20,
        progress: Callable[[int], object] | None = None,
    ) -> list[Discovery]:
        """The likeliest facts that are missing: of a relation, of an entity, or of both, by name."""
        from query2particles.discover import discover

        if self.model is None:
            raise UsageError("missing facts are guessed by a trained run; name one in place of a graph")
        return discover(
            self.graph,
            self.model,
            self.judge,
            plausible=self.plausible,
            split=self.split,
            relation=None if relation is None else self.lexicon.relation(relation),
            entity=None if entity is None else self.lexicon.entity(entity),
            k=k,
            progress=progress,
        )

    def _check(self, question: Question) -> None:
        for what, value, choices in (
            ("the method", question.method, get_args(Method)),
            ("only", question.only, (None, *get_args(Only))),
            ("guesses", question.guesses, get_args(Guesses)),
        ):
            if value not in choices:
                raise UsageError(f"{what} is one of {', '.join(filter(None, choices))}, not {value!r}")
        if question.k < 1:
            raise UsageError(f"k is at least 1, not {question.k}")
        if not 0 <= question.minimum_probability <= 1:
            raise UsageError(f"a probability is between 0 and 1, not {question.minimum_probability}")
        if self.model is None and question.method == "neural":
            raise UsageError("a graph alone has exact answers only; name a run, or the method exact")
        if question.method == "best" and self.fast is None:
            raise UsageError(
                "best asks the parts of a joined run: train one (q2p train GRAPH --method best --out RUN), or join two "
                "(q2p join)"
            )
        if question.method == "neural" and question.minimum_probability > 0:
            raise UsageError("the model's ranking alone carries no probabilities; ask with the method both")
        ranked = self.model is not None and question.method != "exact"
        if ranked and self.calibration is None and question.minimum_probability > 0:
            raise UsageError("the run is not calibrated, so nothing has a probability: q2p calibrate RUN")

    def _understood(self, text: str, syntax: Syntax | None) -> _Parsed:
        return (self._remembered if len(text) <= _LONGEST_REMEMBERED else self._parsed)(text, syntax)

    def _parsed(self, text: str, syntax: Syntax | None) -> _Parsed:
        if syntax not in (None, *SYNTAXES):
            raise UsageError(f"the syntax is one of {', '.join(SYNTAXES)}, not {syntax!r}")
        return _parsed_query(parse_query(text, self.lexicon, syntax), self.lexicon)

    def _exact(self, asked: Sequence[tuple[int, Question, _Parsed]]) -> Iterator[tuple[int, Answers]]:
        """What follows from stored facts."""
        batch, places = _batched([parsed for _, _, parsed in asked])
        found = exact_answers(self.graph.at(self.split), batch, workers=1) if batch else {}
        for (number, question, parsed), row in zip(asked, places, strict=True):
            sets = found[parsed.shape]
            status = _status_of_known(parsed.query)
            passed_over = question.only == "predicted" or (status != "known" and question.minimum_probability > 0)
            members = [] if passed_over else sets[row].tolist()
            first = heapq.nsmallest(question.k, members, key=self._by_label)
            entities = self.graph.entities
            answers = tuple(Answer(one, entities.name(one), entities.label(one), query=parsed.query) for one in first)
            yield number, self._answered(question, parsed, "exact", sets, row, answers)

    def _ranked(
        self, asked: Sequence[tuple[int, Question, _Parsed]], plausible: Plausible | None
    ) -> Iterator[tuple[int, Answers | Query2ParticlesError]]:
        """What the model thinks, as many questions at a time as memory is set aside for."""
        if not asked:
            return
        from query2particles.calibration import POOL
        from query2particles.engine.disjuncts import Disjuncts
        from query2particles.engine.execute import check_operators
        from query2particles.engine.ranks import rows_at_once, scoring

        assert self.model is not None, "questions for a graph alone are answered exactly"
        edges = self.graph.at(self.split)
        room = max(1, rows_at_once(self.model, edges.entities) // _COPIES)
        together: list[tuple[int, Question, _Parsed]] = []
        taken = 0
        chunks = [together]
        for one in asked:
            try:
                parts = Disjuncts.of(one[2].shape, self.unions).shapes
                check_operators(self.model, parts)
            except Query2ParticlesError as error:
                yield one[0], error
                continue
            if together and taken + len(parts) > room:
                together, taken = [], 0
                chunks.append(together)
            together.append(one)
            taken += len(parts)
        for chunk in filter(None, chunks):
            batch, places = _batched([parsed for _, _, parsed in chunk])
            k = min(max(POOL, *(question.k for _, question, _ in chunk)), edges.entities)
            with scoring(self.model):
                try:
                    rankings = self._rankings(batch, k, plausible)
                except ShardsLostError as error:
                    yield from ((number, error) for number, _, _ in chunk)
                    continue
                judged = {
                    shape: None if plausible is None else self._judged(shape, batch[shape], ranking)
                    for shape, ranking in rankings.items()
                }
                chosen: dict[Query, list[list[_Chosen]]] = {shape: [] for shape in batch}
                for (_, question, parsed), row in zip(chunk, places, strict=True):  # rows of a shape come in turn
                    own = self._chosen(question, parsed, rankings[parsed.shape], judged[parsed.shape], row)
                    chosen[parsed.shape].append(own)
                particles = {shape: self._particles(rankings[shape], some) for shape, some in chosen.items()}
            for (number, question, parsed), row in zip(chunk, places, strict=True):
                some = zip(chosen[parsed.shape][row], particles[parsed.shape][row], strict=False)
                answers = tuple(self._named(one, particle, parsed.query) for one, particle in some)
                known, of_shape = rankings[parsed.shape].known, judged[parsed.shape]
                found = self._answered(question, parsed, question.method, known, row, answers)
                yield number, found if of_shape is None else _folded(found, question, of_shape.missing[row])

    def _rankings(
        self, batch: Mapping[Query, Any], k: int, plausible: Plausible | None
    ) -> Mapping[Query, Ranking | SearchedRanking]:
        assert self.model is not None, "something ranks"
        edges = self.graph.at(self.split)
        if self.search is None:
            from query2particles.ranking import rank

            return rank(self.model, edges, batch, k, unions=self.unions, plausible=plausible)
        from query2particles.searched import rank_by_search

        return rank_by_search(self.model, self.search, edges, batch, k, unions=self.unions, plausible=plausible)

    def _judged(self, shape: Query, ids: Any, ranking: Ranking | SearchedRanking) -> _Judged | None:
        """How likely the best open entities of the questions of a shape are; None where nothing tells."""
        if self.judge is None or self._unasked():  # a calibration knows the scores of all
            return None
        from query2particles.calibration import POOL

        entities = np.where(np.isfinite(ranking.best_scores), ranking.best, -1)
        probabilities = self.judge.open(shape, ids, ranking, ranking.best_scores, entities)
        return _Judged(probabilities, probabilities[:, :POOL].sum(1))

    def _chosen(
        self,
        question: Question,
        parsed: _Parsed,
        ranking: Ranking | SearchedRanking,
        judged: _Judged | None,
        row: int,
    ) -> list[_Chosen]:
        """The answers of one question, best first."""
        neural = question.method == "neural"
        found: list[_Chosen] = []
        if question.only != "known":
            guesses = ranking.best_open(row, ranking.best.shape[1])
            likely = [None] * len(guesses.scores) if judged is None else judged.probabilities[row].tolist()
            found += _listed(guesses, likely, "predicted")
            if neural:  # which knows no facts
                refuted = ranking.best_refuted(row, question.k)
                found += _listed(refuted, [None] * len(refuted.scores), "predicted")
        if question.only is None or question.only == ("predicted" if neural else "known"):
            known = ranking.best_known(row, question.k)
            status: Status = "predicted" if neural else _status_of_known(parsed.query)
            kept: Sequence[float | None] = [1.0 if status == "known" else None] * len(known.scores)
            if status == "supported" and judged is not None and self.judge is not None:
                ids, own = np.array([parsed.ids]), _Row(ranking, row)
                kept = self.judge.kept(parsed.shape, ids, own, known.scores[None])[0].tolist()
            found += _listed(known, kept, status)
        found = [one for one in found if (one[2] or 0.0) >= question.minimum_probability]
        found.sort(key=lambda one: (0.0 if judged is None else -(one[2] or 0.0), -one[1], one[0]))
        return found[: question.k]

    def _particles(
        self, ranking: Ranking | SearchedRanking, chosen: Sequence[Sequence[_Chosen]]
    ) -> list[list[int | None]]:
        """The particle of each answer, all questions of a shape at once; rows may be longer than there are answers."""
        assert self.model is not None, "there are rankings"
        entities = np.zeros((len(chosen), max(map(len, chosen))), dtype=np.int64)
        for row, some in enumerate(chosen):
            entities[row, : len(some)] = [one[0] for one in some]
        particles = ranking.particles_of(entities)
        nothing: list[list[int | None]] = [[None] * entities.shape[1]] * len(chosen)
        return nothing if particles is None else particles.tolist()

    def _named(self, chosen: _Chosen, particle: int | None, query: Query) -> Ranked:
        entity, score, probability, status = chosen
        entities = self.graph.entities
        name, label = entities.name(entity), entities.label(entity)
        return Ranked(entity, name, label, score, probability, status, particle, query=query)

    def _answered(
        self,
        question: Question,
        parsed: _Parsed,
        method: Method,
        known: Sets,
        row: int,
        answers: tuple[Answer | Ranked, ...],
    ) -> Answers:
        total = int(known.sizes[row])
        warnings = []
        if known.complemented:
            warnings.append(
                f"the question asks for what something is not: {total:,} of {len(self.graph.entities):,} entities "
                "answer it. Intersect it with what the answers should be."
            )
        by = self.search or getattr(self.model, "search", None)  # or what guides the model
        search = None if by is None or method == "exact" else by.as_json()
        if search and self.search is None:  # what the recall of an index says is what it proposes
            search = {**search, "guides": True}
        if search and (unasked := self._unasked()):
            warnings.append(
                f"{100 * unasked:.0f} % of the entities were not asked: who has them is lost, and guesses carry no "
                "probabilities meanwhile"
            )
        if method != "exact" and self.calibration is None:
            warnings.append(f"guesses carry no probabilities: {self._why_uncalibrated()}")
        return Answers(
            question.text,
            parsed.query,
            parsed.canonical,
            nickname(parsed.shape),
            method,
            total,
            answers,
            "; ".join(warnings) or None,
            search,
        )

    def _unasked(self) -> float:
        """The share of the entities that a search has lost."""
        return float(getattr(self.search, "unasked", 0.0))

    def _why_uncalibrated(self) -> str:
        if hasattr(self.model, "guide"):
            return "a search that vectors guide has none"
        if self.run is not None and not self.run.config.training.holds_out:
            return "validation facts were trained on, and nothing is left to tell how sure it may be"
        if not self.graph.facts()["valid"]:
            return "the graph holds no validation facts back, which would tell how sure it may be"
        return "nothing was calibrated for these weights (q2p calibrate RUN)"

    def _by_label(self, entity: int) -> tuple[str, int]:
        return self.graph.entities.label(entity).casefold(), entity


def ask(
    graph: Graph | str | Path,
    question: str | Expression,
    k: int = 10,
    *,
    syntax: Syntax | None = None,
    split: Split = "test",
) -> Answers:
    """The exact answers of a question, from the facts of one nested level (by default all facts of the graph).

    Exact answers are a set without an order of their own: the `k` first by label are named, `total` counts them all.

        >>> ask("atlas", "Japan.on_continent")[0].label
        'Asia'
    """
    opened = graph if isinstance(graph, Graph) else open_graph(graph)
    return Reasoner(opened, split=split).answer(Question(text_of(question, opened), syntax, k, "exact"))


def predict(
    graph: Graph,
    method: Model[Any],
    query: Query,
    *,
    k: int = 10,
    split: Split = "test",
    guesses_only: bool = False,
    unions: Unions = "native",
) -> list[Ranked]:
    """The `k` entities that a method scores highest, best first; those that follow from the facts of a level are known.

    With `guesses_only` the known ones are passed over. Scores of one query compare with each other, not with those of
    another.
    """
    reasoner = Reasoner(graph, model=method, split=split, unions=unions)
    question = Question("", k=k, only="predicted" if guesses_only else None)
    ((_, found),) = reasoner._ranked([(0, question, _parsed_query(query, None))], reasoner.plausible)
    if isinstance(found, Query2ParticlesError):
        raise found
    return [one for one in found.answers if isinstance(one, Ranked)]


def _listed(candidates: Candidates, probabilities: Sequence[float | None], status: Status) -> list[_Chosen]:
    columns = candidates.entities.tolist(), candidates.scores.tolist(), probabilities
    return [(entity, score, probability, status) for entity, score, probability in zip(*columns, strict=False)]


def _folded(answered: Answers, question: Question, expected_more: float) -> Answers:
    """With the number of answers that are expected; where that is small, with guesses folded away."""
    answered = replace(answered, expected_more=float(expected_more))
    if not answered.complete or question.guesses == "always" or question.only == "predicted":
        return answered
    guesses = tuple(one for one in answered.answers if isinstance(one, Ranked) and not one.known)
    return replace(answered, answers=tuple(one for one in answered.answers if one not in guesses), folded=guesses)


def _as_question(question: Question | str) -> Question:
    return Question(question) if isinstance(question, str) else question


def _parsed_query(query: Query, lexicon: Lexicon | None) -> _Parsed:
    shape, ids = abstract(query)
    return _Parsed(query, "" if lexicon is None else format_query(query, lexicon), shape, ids)


def _status_of_known(query: Query) -> Status:
    return "supported" if has_complement(query) else "known"


def _batched(asked: Sequence[_Parsed]) -> tuple[dict[Query, Any], list[int]]:
    """Queries by shape, in an order that does not depend on theirs, and of each in turn its row there."""
    rows: defaultdict[Query, list[tuple[int, ...]]] = defaultdict(list)
    places = []
    for parsed in asked:
        places.append(len(rows[parsed.shape]))
        rows[parsed.shape].append(parsed.ids)
    return {shape: np.array(rows[shape], dtype=np.int64) for shape in sorted(rows, key=nickname)}, places


def _plane(vectors: Any) -> tuple[Any, tuple[float, float]]:
    """The two principal components (n, 2) of vectors of length 1, and the share of the variance of each."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = vectors / np.maximum(lengths, 1e-12)
    centred = directions - directions.mean(0)
    left, spread, axes = np.linalg.svd(centred, full_matrices=False)
    # Either sign of an axis is as good: take the one in which its largest entry is positive.
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])
    plane = np.zeros((len(vectors), 2))
    shown = min(2, len(spread))
    plane[:, :shown] = (left * spread * signs)[:, :shown]
    shares = np.append(spread**2 / max(float((spread**2).sum()), 1e-12), [0.0, 0.0])
    return plane, (float(shares[0]), float(shares[1]))
