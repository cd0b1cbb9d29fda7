"""The likeliest facts that are missing: of a relation, of an entity, or of a relation of an entity.

Candidates are what one-hop questions find from one end; those that rank best are judged one by one, as facts are
wherever they are shown (`calibration`). What is of a wrong kind (`graph/kinds`) is passed over: a model that ranks all
entities always has a best one, even where nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from query2particles.errors import UsageError
from query2particles.evidence import Estimates, Floats, Named
from query2particles.graph.edges import Ints
from query2particles.graph.graph import Graph, Split
from query2particles.graph.kinds import Kinds

if TYPE_CHECKING:
    from query2particles.calibration import Judge
    from query2particles.engine.method import Method
    from query2particles.engine.plausible import Plausible

__all__ = ["Discovery", "discover"]

_TOGETHER = 64
"""One-hop queries that are judged at once."""

_POOL, _JUDGED = 200, 4000
"""At least so many candidates are asked for from both ends, or judged one by one, and ten times as many as wanted.

Judging is quick, and what is likeliest from one end alone is seldom the likeliest fact: one city may lead in every
state.
"""


@dataclass(frozen=True, slots=True)
class Discovery:
    """A fact that is not stored, and how likely it is: None without a calibration, where the softmax orders facts."""

    head: Named
    relation: Named
    tail: Named
    score: float
    probability: float | None

    def as_json(self) -> dict[str, Any]:
        return {
            "head": self.head.as_json(),
            "relation": self.relation.as_json(),
            "tail": self.tail.as_json(),
            "score": round(self.score, 4),
            "probability": None if self.probability is None else round(self.probability, 4),
        }


def discover(
    graph: Graph,
    model: Method[Any],
    judge: Judge | None,
    *,
    plausible: Plausible,
    split: Split = "test",
    relation: int | None = None,
    entity: int | None = None,
    k: int = 20,
    progress: Callable[[int], object] | None = None,
) -> list[Discovery]:
    """The `k` likeliest missing facts of a relation (its id 2r), of an entity, or of both, the likeliest first."""
    from query2particles.engine.ranks import scoring

    if relation is None and entity is None:
        raise UsageError("name a relation or an entity whose missing facts are to be found")
    if k < 1:
        raise UsageError(f"k is at least 1, not {k}")
    estimates = Estimates(graph.at(split), model, plausible=plausible)
    with scoring(model):
        most = max(_POOL if judge is None else _JUDGED, 10 * k)
        facts = _candidates(estimates, plausible.kinds, relation, entity, most, progress)
        if not len(facts):
            return []
        heads, relations, tails = facts.T
        if judge is None:
            there, back = (
                _asked(estimates, heads, relations, tails)[0],
                _asked(estimates, tails, relations ^ 1, heads)[0],
            )
            likely = np.sqrt(there * back)
        else:
            likely = judge.guessed_facts(heads, relations, tails)
        best = np.argsort(-likely, kind="stable")[:k]
        scores = _asked(estimates, heads[best], relations[best], tails[best])[1]
    return [
        Discovery(
            Named.of(graph.entities, int(heads[one])),
            Named.of(graph.relations, int(relations[one]) // 2),
            Named.of(graph.entities, int(tails[one])),
            float(score),
            None if judge is None else float(likely[one]),
        )
        for one, score in zip(best, scores, strict=True)
    ]


def _candidates(
    estimates: Estimates,
    kinds: Kinds,
    relation: int | None,
    entity: int | None,
    most: int,
    progress: Callable[[int], object] | None,
) -> Ints:
    """(m, 3): the facts that are likeliest from one end, in the direction in which facts are stored, each once."""
    found: list[tuple[Floats, Ints]] = [(np.zeros(0), np.zeros((0, 3), dtype=np.int64))]
    for entities, relations in _parts(_questions(kinds, relation, entity)):
        links, _ = estimates.links(entities, relations)
        for row, (start, directed) in enumerate(zip(entities.tolist(), relations.tolist(), strict=True)):
            links[row, estimates.edges.tails_of(start, directed)] = -1  # what is stored is not missing
        flat = np.argpartition(-links, min(most, links.size) - 1, axis=None)[:most]
        rows, others = np.divmod(flat, links.shape[1])
        ends = np.stack([entities[rows], others])
        ends = np.where(relations[rows] % 2 == 0, ends, ends[::-1])
        facts = np.stack([ends[0], relations[rows] & ~1, ends[1]], axis=1)
        missing = links.ravel()[flat] > 0
        found.append((links.ravel()[flat][missing], facts[missing]))
        if progress is not None:
            progress(len(entities))
    worth, facts = (np.concatenate(column) for column in zip(*found, strict=True))
    facts = facts[np.argsort(-worth, kind="stable")]
    _, first = np.unique(facts, axis=0, return_index=True)
    kept: Ints = facts[np.sort(first)][:most]
    return kept


def _questions(kinds: Kinds, relation: int | None, entity: int | None) -> Ints:
    """(n, 2): the entities and directed relations to ask for; of a relation, from the end that fewer can stand at."""
    if entity is not None:
        directed = np.arange(kinds.edges.relations) if relation is None else np.array([relation, relation ^ 1])
        able = directed[kinds.can(np.full(len(directed), entity), directed)]
        return np.stack([np.full(len(able), entity), able], axis=1)
    assert relation is not None, "one of them is named"
    ends = [(np.flatnonzero(kinds.all_that_can(directed)), directed) for directed in (relation, relation ^ 1)]
    entities, end = min(ends, key=lambda pair: len(pair[0]))
    return np.stack([entities, np.full(len(entities), end)], axis=1)


def _asked(estimates: Estimates, entities: Ints, relations: Ints, answers: Ints) -> tuple[Floats, Floats]:
    """How likely each one-hop query has its answer, and with which score."""
    likely, scores = [], []
    rows = np.stack([entities, relations, answers], axis=1)
    for start in range(0, len(rows), _TOGETHER):
        some = rows[start : start + _TOGETHER]
        links, scored = estimates.links(some[:, 0], some[:, 1])
        assert scored is not None, "there is a model"
        place = np.arange(len(some)), some[:, 2]
        likely.append(links[place])
        scores.append(scored[place])
    return np.concatenate(likely), np.concatenate(scores)


def _parts(questions: Ints) -> Iterator[tuple[Ints, Ints]]:
    for start in range(0, len(questions), _TOGETHER):
        some = questions[start : start + _TOGETHER]
        yield some[:, 0], some[:, 1]
