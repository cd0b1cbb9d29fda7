"""Learning from natural questions how likely guesses are: validation facts are held out, and tell what comes true.

All other facts count as stored, as they do when questions are asked. Of every one-hop question the best open entities
are judged, the missing answers among the others, and a few random ones of the right kind, each of which stands for
many. Of longer questions the best open entities are; where there is a complement, also the best known ones, which
missing facts may take back.

What is fitted to all questions is judged by fits to one half of them, on the other half.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from query2particles.calibration.additive import Additive, Samples, line_through
from query2particles.calibration.calibration import ANY, ONE_HOP, POOL, Calibration, name_of
from query2particles.calibration.facts import FactFeatures
from query2particles.calibration.questions import KNOWN, OPEN, QuestionFeatures, last_relation
from query2particles.calibration.rates import Rates
from query2particles.calibration.reliability import Judged
from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.exact import exact_answers
from query2particles.engine.method import Method
from query2particles.engine.plausible import Plausible
from query2particles.engine.ranks import rows_at_once, scoring
from query2particles.errors import WorkloadError
from query2particles.graph.edges import Edges, Ints
from query2particles.query.algebra import SHAPES, Query, has_complement
from query2particles.query.rewrite import Unions
from query2particles.ranking import Ranking, rank
from query2particles.workload.labels import Labels, labels_between
from query2particles.workload.natural import natural_questions, telling_questions

__all__ = ["calibrate", "questions_for", "rankings_of"]

Floats: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_RANDOM = 10
"""Of each one-hop question, as many random entities are judged beside the best ones."""

_FEWEST = 10
"""With fewer true samples nothing is fitted."""

_COPIES = 4
"""Of the scores of questions that are ranked together, at the peak: so much smaller are their groups."""

_LOST = "lost"
_RISING = frozenset({"facts", "score", "low score"})
"""Features of longer questions whose weights are not negative."""

_DOUBT = 0.5
"""Of longer questions there are few: what they make likely is lowered by as many standard errors."""

_PENALTY = 30.0
"""Of longer questions: what single facts say is taken as it is unless many questions say otherwise."""

_ON_CPU: tuple[tuple[float, dict[str, int]], ...] = (
    (10_000, {"one_hop": 4000, "longer": 200}),
    (40_000, {"one_hop": 4000, "longer": 100}),
    (200_000, {"one_hop": 4000, "longer": 50}),
    (math.inf, {"one_hop": 500, "longer": 10}),
)
"""Of graphs with up to so many entities."""

_SECONDS_PER_QUESTION, _SECONDS_PER_QUESTION_AND_ENTITY = 2e-3, 3e-7
"""What a question takes on a core, by a joined run."""

_LEAST_ASKED = {"one_hop": 500, "longer": 15}


def questions_for(entities: int, device: str, seconds: float | None = None) -> dict[str, int]:
    """How many questions tell enough: one-hop ones, and of every other shape; fewer where there are few `seconds`."""
    if device != "cpu":
        return {"one_hop": 6000, "longer": 300}
    asked = next(asked for most, asked in _ON_CPU if entities <= most)
    if seconds is None:
        return asked
    each = _SECONDS_PER_QUESTION + _SECONDS_PER_QUESTION_AND_ENTITY * entities
    share = seconds / (each * (asked["one_hop"] + asked["longer"] * (len(SHAPES) - 1)))
    return {name: max(_LEAST_ASKED[name], int(min(share, 1.0) * count)) for name, count in asked.items()}


def calibrate(
    method: Method[Any],
    stored: Edges,
    larger: Edges,
    *,
    one_hop: int,
    longer: int,
    unions: Unions = "native",
    seed: int = 0,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[Calibration, Mapping[str, Judged]]:
    """Fit to what larger edges add to stored ones, and judge that on questions that the fit has not seen.

    There are `one_hop` one-hop questions, and `longer` of every other shape that the method can answer.
    """
    if larger.facts == stored.facts:
        raise WorkloadError(
            "the graph has no validation facts that could tell how sure guesses may be; import it with some held out "
            "(q2p graph import --split)"
        )
    telling = telling_questions(stored, larger, count=one_hop, seed=seed)
    shapes = [shape for shape in SHAPES.values() if not Disjuncts.of(shape, unions).lacking(method)]
    others = natural_questions(stored, larger, count=longer, one_hop=0, seed=seed, shapes=shapes)
    batch = {SHAPES["1p"]: telling.ids, **{shape: ids for shape, ids in others.items() if shape != SHAPES["1p"]}}
    before, after = (exact_answers(edges, batch) for edges in (stored, larger))
    gathered = _Gathered(method, stored, Rates.fit(stored, larger), np.random.default_rng(seed))
    with scoring(method):
        for shape, ids in batch.items():
            weights = telling.weights if shape == SHAPES["1p"] else np.ones(len(ids))
            labels = labels_between(before[shape], after[shape])
            for rows, ranking in rankings_of(method, stored, shape, ids, unions, gathered.plausible):
                own = labels.take(np.arange(rows.start, rows.stop))
                gathered.add(shape, ids[rows], weights[rows], own, ranking)
                progress(len(ranking.best))
    return gathered.fitted()


def rankings_of(
    method: Method[Any], edges: Edges, shape: Query, ids: Ints, unions: Unions, plausible: Plausible
) -> Iterator[tuple[slice, Ranking]]:
    """The best open entities of the questions of one shape, as many rows at a time as fit; call it in `scoring`."""
    parts = len(Disjuncts.of(shape, unions).shapes)
    together = max(1, rows_at_once(method, edges.entities) // (parts * _COPIES))
    k = min(POOL, edges.entities)
    for start in range(0, len(ids), together):
        rows = slice(start, min(start + together, len(ids)))
        yield rows, rank(method, edges, {shape: ids[rows]}, k, unions=unions, plausible=plausible)[shape]


class _Gathered:
    """Samples of all questions so far, by what they are judged as."""

    def __init__(self, method: Method[Any], edges: Edges, rates: Rates, generator: np.random.Generator) -> None:
        self.method, self.edges, self.rates, self.generator = method, edges, rates, generator
        self.plausible = Plausible(edges)
        self.features = FactFeatures(method, edges, self.plausible.kinds, rates)
        self.samples: dict[str, list[Samples]] = {}
        self.best: dict[str, list[Samples]] = {}
        """Of the best open entities alone."""
        self.relation: dict[str, list[Ints]] = {}
        self.asked: Counter[str] = Counter()
        """How many questions of each name there were: they are numbered in turn."""

    def add(self, shape: Query, ids: Ints, weights: Floats, labels: Labels, ranking: Ranking) -> None:
        name, relation = name_of(shape), last_relation(shape, ids)
        first = self.asked[name]
        true = labels.hard.contain(ranking.best)
        rows, places = np.nonzero(ranking.best_scores > -np.inf)
        entities, question = ranking.best[rows, places], rows + first
        if name == ONE_HOP:
            others = self._others(ids, labels, ranking)
            heads, relations, tails, flags, each = (
                np.concatenate(columns)
                for columns in zip(
                    (ids[rows, 0], ids[rows, 1], entities, true[rows, places], np.ones(len(rows))),
                    (ids[others.rows, 0], ids[others.rows, 1], others.entities, others.true, others.stand_for),
                    strict=True,
                )
            )
            of_question = np.concatenate([rows, others.rows])
            every = Samples(
                self.features(heads, relations, tails),
                relations // 2,
                weights[of_question] * each,
                of_question + first,
                flags.astype(bool),
            )
            best = every.take(np.arange(len(rows)))
            self._keep(name, every)
        else:
            features = QuestionFeatures(shape, ids, ranking.nodes, ranking.contexts, self.features, self.facts)
            scores = np.where(np.isfinite(ranking.best_scores), ranking.best_scores, 0.0)
            values = features.of_open(scores, ranking.best)[rows, places]
            best = Samples(values, relation[rows] // 2, weights[rows], question, true[rows, places])
            self._keep(name, best)
            if has_complement(shape):
                self._keep(_LOST, self._known(features, labels, ranking, first))
        self.best.setdefault(name, []).append(best)
        self.relation.setdefault(name, []).append(relation[rows])
        self.asked[name] += len(ids)

    @cached_property
    def of_facts(self) -> _Fit:
        """Of one-hop questions, which come before all others: these are judged by it."""
        found = self._fit(ONE_HOP, *(Samples.joined(some[ONE_HOP]) for some in (self.samples, self.best)))
        if found is None:
            raise WorkloadError(
                "the validation facts are too few to learn from how sure guesses may be: hardly any of them answers a "
                "question that was drawn; import the graph with more held out (q2p graph import --split)"
            )
        return found

    def facts(self, heads: Ints, relations: Ints, tails: Ints) -> Floats:
        """How likely facts are that are not stored."""
        return self.of_facts.whole(self.features(heads, relations, tails), relations // 2)

    def _keep(self, name: str, samples: Samples) -> None:
        self.samples.setdefault(name, []).append(samples)

    def _others(self, ids: Ints, labels: Labels, ranking: Ranking) -> _Others:
        """Of one-hop questions, the missing answers that are not among the best, and random entities that are none."""
        allowed = self.plausible.allowed(SHAPES["1p"], ids)
        assert allowed is not None, "a hop has tails of some kinds"
        allowed = allowed.copy()
        np.put_along_axis(allowed, ranking.best, values=False, axis=1)
        allowed[np.arange(len(ids)), ids[:, 0]] = False
        found = []
        for row, open_to in enumerate(allowed):
            hard = labels.hard[row]
            missed = np.setdiff1d(hard, ranking.best[row, ranking.best_scores[row] > -np.inf])
            open_to[hard] = open_to[labels.easy[row]] = False
            candidates = np.flatnonzero(open_to)
            random = self.generator.choice(candidates, min(_RANDOM, len(candidates)), replace=False)
            stand_for = np.append(np.ones(len(missed)), np.full(len(random), len(candidates) / max(len(random), 1)))
            entities = np.append(missed, random).astype(np.int64)
            found.append((np.full(len(entities), row), entities, np.arange(len(entities)) < len(missed), stand_for))
        return _Others(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def _known(self, features: QuestionFeatures, labels: Labels, ranking: Ranking, first: int) -> Samples:
        """Known answers of questions with a complement: whether a missing fact took each back."""
        count = len(ranking.best)
        scores, entities = np.zeros((count, POOL)), np.zeros((count, POOL), dtype=np.int64)
        there = np.zeros((count, POOL), dtype=bool)
        for row in range(count):
            some = ranking.best_known(row, POOL)
            size = len(some.scores)
            scores[row, :size], entities[row, :size], there[row, :size] = some.scores, some.entities, True
        rows, places = np.nonzero(there)
        none = np.zeros(len(rows), dtype=np.int64)
        values = features.of_known(scores)[rows, places]
        return Samples(values, none, np.ones(len(rows)), rows + first, labels.lost.contain(entities)[rows, places])

    def fitted(self) -> tuple[Calibration, Mapping[str, Judged]]:
        """What all samples say, and how what one half says does on the other."""
        samples = {name: Samples.joined(parts) for name, parts in self.samples.items() if name != ONE_HOP}
        if longer := [one for name, one in samples.items() if name != _LOST]:
            samples[ANY] = Samples.joined(longer)
        fits = {name: fit for name, one in samples.items() if (fit := self._fit(name, one)) is not None}
        fits[ONE_HOP] = self.of_facts
        judged = {}
        for name, parts in self.best.items():
            best = Samples.joined(parts)
            fit = fits.get(name) or fits.get(ANY)
            claimed = np.zeros(len(best.true)) if fit is None else fit.of_unseen(best)
            relation = np.concatenate(self.relation[name])
            judged[name] = Judged(claimed, best.true, best.question, relation, best.weight)
        figures = {name: one.figures() for name, one in judged.items() if len(one.claimed)}
        longer_ones = {name: one.whole for name, one in fits.items() if name not in (ONE_HOP, _LOST)}
        questions = {ANY: _by_facts(), **longer_ones}
        lost = fits[_LOST].whole if _LOST in fits else None
        return Calibration(self.of_facts.whole, questions, lost, self.rates, figures), judged

    def _fit(self, name: str, samples: Samples, shown: Samples | None = None) -> _Fit | None:
        """None where there are too few samples to learn from.

        How high probabilities are is learned from the samples that would be `shown`, the best of each question (all
        samples by default): a random entity that stands for thousands would outweigh all of them.
        """
        halves = [samples.take(samples.question % 2 == half) for half in (0, 1)]
        if min(int(half.true.sum()) for half in halves) < _FEWEST // 2:
            return None
        doubt = 0.0 if name == ONE_HOP else _DOUBT
        fits = [self._additive(name, half) for half in halves]
        return _Fit.of(self._additive(name, samples), fits, samples if shown is None else shown, doubt)

    def _additive(self, name: str, samples: Samples) -> Additive:
        if name == ONE_HOP:
            rising = FactFeatures.rising_for(self.method)
            return Additive.fit(FactFeatures.names_for(self.method), samples, rising=rising, by_relation=True)
        names = KNOWN if name == _LOST else OPEN
        return Additive.fit(
            names,
            samples,
            rising=[feature in _RISING for feature in names],
            by_relation=name != _LOST,
            usual=[float(feature == "facts") for feature in names],
            penalty=_PENALTY,
        )


@dataclass(frozen=True)
class _Fit:
    """What all samples say; and each half of the questions alone, by which the other half is judged."""

    whole: Additive
    halves: Sequence[Additive]

    @staticmethod
    def of(whole: Additive, halves: Sequence[Additive], samples: Samples, doubt: float) -> _Fit:
        """From log odds to probabilities by what the halves say of samples that they have not seen: what was learned
        by heart does not count.
        """
        found = _Fit(whole, halves)
        knots = line_through(expit(found._log_odds(samples)), samples, doubt)
        return _Fit(replace(whole, knots=knots), halves)

    def of_unseen(self, samples: Samples) -> Floats:
        """Probabilities by the half that has not seen each sample."""
        return self.whole.probabilities(self._log_odds(samples))

    def _log_odds(self, samples: Samples) -> Floats:
        found = np.empty(len(samples.true))
        for number, half in enumerate(self.halves):
            unseen = samples.question % 2 != number
            found[unseen] = half.log_odds(samples.features[unseen], samples.relation[unseen])
        return found


@dataclass(frozen=True)
class _Others:
    """Entities of one-hop questions beside the best ones: of which question, whether true, how many each stands for."""

    rows: Ints
    entities: Ints
    true: Flags
    stand_for: Floats


def _by_facts() -> Additive:
    """Where too few longer questions tell more, what single facts say."""
    weights = tuple(float(name == "facts") for name in OPEN)
    return Additive(OPEN, weights, 0.0, ((0.0, 1e-6), (1.0, 1 - 1e-6)), {}, (0.0,) * len(OPEN))
