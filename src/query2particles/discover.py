"""The likeliest facts that are missing: of a relation, of an entity, or of a relation of an entity.

A missing fact is asked for from both ends, by the one-hop queries (head, relation) and (tail, inverse relation); its
probability is the geometric mean of what the two answers have. What stored facts make implausible is passed over
(`_Plausible`): a model that ranks all entities always has a best one, even where nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from query2particles.errors import UsageError
from query2particles.evidence import Floats, Judge, Named
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.graph import Graph, Split

if TYPE_CHECKING:
    from query2particles.calibration import Calibration
    from query2particles.engine.method import Method

__all__ = ["Discovery", "discover"]

_TOGETHER = 64
"""One-hop queries that are judged at once."""

_ALIKE = 0.25
"""A relation tells what kind of entities another one starts from if at least this share of them has it."""

_POOL = 200
"""At least so many candidates are asked for from their other end, too, and ten times as many as wanted."""


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
    calibration: Calibration | None,
    *,
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
    judge = Judge(graph.at(split), model, calibration)
    with scoring(model):
        facts = _candidates(judge, relation, entity, max(_POOL, 10 * k), progress)
        if not len(facts):
            return []
        heads, relations, tails = facts.T
        there, scores = _asked(judge, heads, relations, tails)
        back, _ = _asked(judge, tails, relations ^ 1, heads)
    likely = np.sqrt(there * back)
    return [
        Discovery(
            Named.of(graph.entities, int(heads[one])),
            Named.of(graph.relations, int(relations[one]) // 2),
            Named.of(graph.entities, int(tails[one])),
            float(scores[one]),
            None if calibration is None else float(likely[one]),
        )
        for one in np.argsort(-likely, kind="stable")[:k]
    ]


def _candidates(
    judge: Judge, relation: int | None, entity: int | None, most: int, progress: Callable[[int], object] | None
) -> Ints:
    """(m, 3): the facts that are likeliest from one end, in the direction in which facts are stored, each once."""
    plausible = _Plausible(judge.edges)
    found: list[tuple[Floats, Ints]] = [(np.zeros(0), np.zeros((0, 3), dtype=np.int64))]
    for entities, relations in _parts(_questions(plausible, relation, entity)):
        links, _ = judge.links(entities, relations)
        for row, (start, directed) in enumerate(zip(entities.tolist(), relations.tolist(), strict=True)):
            links[row, ~plausible.others(start, directed)] = -1
        flat = np.argpartition(-links, min(most, links.size) - 1, axis=None)[:most]
        rows, others = np.divmod(flat, links.shape[1])
        ends = np.stack([entities[rows], others])
        ends = np.where(relations[rows] % 2 == 0, ends, ends[::-1])
        facts = np.stack([ends[0], relations[rows] & ~1, ends[1]], axis=1)
        missing = links.ravel()[flat] >= 0
        found.append((links.ravel()[flat][missing], facts[missing]))
        if progress is not None:
            progress(len(entities))
    worth, facts = (np.concatenate(column) for column in zip(*found, strict=True))
    facts = facts[np.argsort(-worth, kind="stable")]
    _, first = np.unique(facts, axis=0, return_index=True)
    kept: Ints = facts[np.sort(first)][:most]
    return kept


def _questions(plausible: _Plausible, relation: int | None, entity: int | None) -> Ints:
    """(n, 2): the entities and directed relations to ask for; of a relation, from the end that fewer may stand at."""
    if entity is not None:
        directed = np.arange(plausible.edges.relations) if relation is None else np.array([relation, relation ^ 1])
        return np.stack([np.full(len(directed), entity), directed], axis=1)
    assert relation is not None, "one of them is named"
    ends = [(np.flatnonzero(plausible.start(directed)), directed) for directed in (relation, relation ^ 1)]
    entities, end = min(ends, key=lambda pair: len(pair[0]))
    return np.stack([entities, np.full(len(entities), end)], axis=1)


class _Plausible:
    """What may be missing, as far as stored facts tell.

    An entity may have a directed relation if it has it already, or another one that many of those have that do. Where
    practically all have one tail alone, whoever has one is complete. Entities do not lead to themselves, unless some
    do by the same relation.
    """

    def __init__(self, edges: Edges) -> None:
        self.edges = edges
        heads, relations = np.divmod(edges.keys, edges.relations)
        shape = (edges.entities, edges.relations)
        self.has = sparse.csr_array((np.ones(len(heads), dtype=np.int32), (heads, relations)), shape=shape)
        every_head, every_relation = (np.repeat(ids, edges.row_lengths[:-1]) for ids in (heads, relations))
        self.loops = set(every_relation[every_head == edges.tails].tolist())
        self.starts: dict[int, npt.NDArray[np.bool_]] = {}

    def others(self, entity: int, relation: int) -> npt.NDArray[np.bool_]:
        """(N,): whether a fact that leads from the entity along the relation to another may be missing."""
        if not self.start(relation)[entity]:
            return np.zeros(self.edges.entities, dtype=bool)
        ends = self.start(relation ^ 1).copy()
        ends[self.edges.tails_of(entity, relation)] = False  # what is stored is not missing
        ends[entity] &= relation in self.loops
        return ends

    def start(self, relation: int) -> npt.NDArray[np.bool_]:
        """(N,): which entities may have one more edge of the relation."""
        if relation not in self.starts:
            heads = self.edges.heads_by_relation[relation]
            alike = self.has[heads].sum(axis=0) >= _ALIKE * max(len(heads), 1)
            alike[relation] = True
            start = self.has @ alike.astype(np.int32) > 0
            tails = self.edges.lengths_of(heads, np.full(len(heads), relation))
            if len(heads) and np.quantile(tails, 0.99) == 1:
                start[heads] = False
            self.starts[relation] = start
        return self.starts[relation]


def _asked(judge: Judge, entities: Ints, relations: Ints, answers: Ints) -> tuple[Floats, Floats]:
    """How likely each one-hop query has its answer, and with which score."""
    likely, scores = [], []
    rows = np.stack([entities, relations, answers], axis=1)
    for start in range(0, len(rows), _TOGETHER):
        some = rows[start : start + _TOGETHER]
        links, scored = judge.links(some[:, 0], some[:, 1])
        assert scored is not None, "there is a model"
        place = np.arange(len(some)), some[:, 2]
        likely.append(links[place])
        scores.append(scored[place])
    return np.concatenate(likely), np.concatenate(scores)


def _parts(questions: Ints) -> Iterator[tuple[Ints, Ints]]:
    for start in range(0, len(questions), _TOGETHER):
        some = questions[start : start + _TOGETHER]
        yield some[:, 0], some[:, 1]
