"""Evidence: the best assignment of a query's inner variables, as a tree of facts, each stored or predicted.

An assignment is worth the product of its facts' probabilities: 1 where a fact is stored, else what a calibrated run
says of the fact (`calibration`), the same as wherever that fact is shown. A complement is worth 1 − that of the best
counter-path. The search goes from the answer backwards: of a projection's sources those are tried that promise most,

    promise of a target × estimate of the link to it × estimate of being an answer of the query below,

over all entities, so that stored sources, the exact answers of the query below and the model's own favourites compete
in one list; the product is what the source itself promises. Estimates come from the scores of all entities, so that
none needs to be judged alone. A way of stored facts alone promises 1 at every step, so it is never lost. Then values
are computed from the probabilities of what was tried, from the anchors up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.engine.exact import Exact, exact_answers, refuted_answers
from query2particles.engine.execute import execute
from query2particles.engine.plan import Node, compile_shapes
from query2particles.engine.sets import Sets, union
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.graph import Graph, Split
from query2particles.graph.vocabulary import Vocabulary
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    abstract,
    branches,
    has_complement,
)
from query2particles.query.rewrite import Unions
from query2particles.wording import percentage

if TYPE_CHECKING:
    from torch import Tensor

    from query2particles.calibration import Judge
    from query2particles.engine.method import Method
    from query2particles.engine.plausible import Plausible

__all__ = ["Estimates", "Evidence", "Fact", "Named", "Proof", "find_evidence"]

Floats: TypeAlias = npt.NDArray[np.float64]

_SOURCES = 8
"""How many sources are tried for each target, at least where all targets of a projection fit."""

_WIDEST = 32
"""How many entities are tried for one variable."""

_APART, _FACTOR_APART = 0.02, 1.5
"""A probability and what its evidence is worth differ where they are so far apart, and by such a factor."""

_REASONS = 4
"""So many reasons of a single fact's probability are told."""

_FLOOR = 1e-6
"""An assignment that is worth less is no evidence."""


@dataclass(frozen=True, slots=True)
class Named:
    """An entity or a relation as people know it."""

    id: int
    name: str
    label: str

    @staticmethod
    def of(vocabulary: Vocabulary, index: int) -> Named:
        return Named(index, vocabulary.name(index), vocabulary.label(index))

    def as_json(self) -> dict[str, str]:
        return {"name": self.name, "label": self.label}


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact as it is stored, or would be: head, relation, tail."""

    head: Named
    relation: Named
    tail: Named
    stored: bool
    probability: float
    score: float | None
    """What the model gives it from head to tail; None where it is stored."""

    def as_json(self) -> dict[str, Any]:
        return {
            "head": self.head.as_json(),
            "relation": self.relation.as_json(),
            "tail": self.tail.as_json(),
            "status": "stored" if self.stored else "predicted",
            "probability": round(self.probability, 4),
            "score": None if self.score is None else round(self.score, 4),
        }


@dataclass(frozen=True, slots=True)
class Proof:
    """One operator of the query with the entity that was found for it, and what speaks for that."""

    op: Literal["anchor", "project", "intersect", "union", "complement"]
    entity: Named
    value: float
    """What the assignment below is worth."""
    branches: tuple[Proof, ...] = ()
    """Of a union only the one that was taken; of a complement the best counter-path."""
    fact: Fact | None = None
    """Of a projection: what leads from the branch's entity to this one."""
    stored_path: bool = False
    counter_probability: float = 0.0
    threshold: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether all of it can be said: of a complement, that nothing stored or likely speaks against it."""
        if self.op == "complement":
            return not self.stored_path and self.counter_probability < self.threshold
        return self.value >= _FLOOR and all(branch.holds for branch in self.branches)

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"op": self.op, "entity": self.entity.as_json()}
        if self.op == "anchor":
            return document
        if self.fact is not None:
            document["fact"] = self.fact.as_json()
        if self.op == "complement":
            document |= {
                "holds": self.holds,
                "stored_path": self.stored_path,
                "counter_probability": round(self.counter_probability, 4),
                "threshold": self.threshold,
            }
        return {**document, "branches": [branch.as_json() for branch in self.branches]}


@dataclass(frozen=True, repr=False)
class Evidence:
    """Why an entity answers a question; where not `complete`, nothing that could be said for it was found."""

    question: str
    canonical: str
    answer: Named
    status: Literal["known", "supported", "predicted"]
    probability: float | None
    """That it is an answer of the whole question."""
    threshold: float
    complete: bool
    tree: Proof
    reasons: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Where the question is a single fact that is not stored: how much each feature moves its log odds."""

    def __repr__(self) -> str:
        return f"Evidence({self.answer.label!r} for {self.canonical!r}: {self._verdict()})"

    def __str__(self) -> str:
        """For people: the answer, then the facts that speak for it as a tree."""
        lines = [f"{self.answer.label}: {self._verdict()}", *_drawn(_with_lines(self.tree), "")]
        if reasons := list(self.reasons.items())[:_REASONS]:
            signed = (f"{name} {'−' if change < 0 else '+'}{abs(change):.1f}" for name, change in reasons)
            lines.append(f"why: {' · '.join(signed)}")
        if self.difference is not None:
            lines.append(self.difference)
        if not self.complete:
            lines.append("This does not make it an answer: nothing stored or likely enough completes it.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return f"<pre>{escape(str(self))}</pre>"

    def _verdict(self) -> str:
        if self.probability is None:
            return self.status
        return f"{self.status}, probability {percentage(self.probability, certain=self.status == 'known')}"

    @property
    def worth(self) -> float:
        """What the best assignment is worth."""
        return self.tree.value

    @property
    def difference(self) -> str | None:
        """In a sentence, why the answer's probability is not what its evidence is worth; None where they agree."""
        if self.probability is None or self.status == "known":
            return None
        claimed, worth = self.probability, self.worth
        if abs(claimed - worth) < _APART or max(claimed, worth) < _FACTOR_APART * min(claimed, worth):
            return None
        if claimed > worth:
            return (
                f"The best way alone is worth {percentage(worth)}; the answer's {percentage(claimed)} counts all ways "
                "to it, and how the whole question ranks it."
            )
        return (
            f"These facts are worth {percentage(worth)} together; the answer's {percentage(claimed)} is lower, since "
            "so few candidates that the whole question ranks like it come true."
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "query": self.canonical,
            "answer": self.answer.as_json(),
            "status": self.status,
            "probability": None if self.probability is None else round(self.probability, 4),
            "worth": round(self.worth, 4),
            "difference": self.difference,
            "reasons": {name: round(value, 3) for name, value in self.reasons.items()},
            "threshold": self.threshold,
            "complete": self.complete,
            "tree": self.tree.as_json(),
        }


def _drawn(proofs: Sequence[Proof], before: str) -> Iterator[str]:
    """A line for each of the proofs that stand side by side, and for what is below it."""
    for number, proof in enumerate(proofs, start=1):
        last = number == len(proofs)
        yield f"{before}{'└─' if last else '├─'} {_words(proof)}"
        below = [shown for branch in proof.branches for shown in _with_lines(branch)]
        yield from _drawn(below, before + ("   " if last else "│  "))


def _with_lines(proof: Proof) -> list[Proof]:
    """What has a line of its own: facts and complements."""
    if proof.op in ("project", "complement"):
        return [proof]
    return [shown for branch in proof.branches for shown in _with_lines(branch)]


def _words(proof: Proof) -> str:
    if proof.fact is not None:
        fact = proof.fact
        status = "stored" if fact.stored else f"predicted, {percentage(fact.probability)}"
        return f"{fact.relation.label}({fact.head.label}, {fact.tail.label})   {status}"
    entity = proof.entity.label
    if proof.stored_path:
        return f"excluded: stored facts put {entity} among what the question leaves out"
    verdict = "below" if proof.holds else "not below"
    return (
        f"not excluded by stored facts: {entity}; the likeliest way has "
        f"{percentage(proof.counter_probability)}, {verdict} {100 * proof.threshold:g} %"
    )


@dataclass(frozen=True)
class Estimates:
    """Rough probabilities of all entities at once, by stored edges and by the scores of a model where there is one.

    They say what is worth a closer look; what is shown is judged by itself.
    """

    edges: Edges
    model: Method[Any] | None
    unions: Unions = "native"
    plausible: Plausible | None = None

    def links(self, entities: Ints, relations: Ints) -> tuple[Floats, Floats | None]:
        """How likely each one-hop query (n,) has each entity as an answer, (n, N); and the scores, given a model."""
        shape = SHAPES["1p"]
        ids = np.stack([entities, relations], axis=1).astype(np.int64)
        known = exact_answers(self.edges, {shape: ids}, workers=1)[shape]
        if self.model is None:
            return _certain(known), None
        from query2particles.engine.scored import score_all

        scores, _ = score_all(self.model, {shape: ids}, self.edges.entities)[shape]
        return self._of_scores(shape, ids, scores, known), scores.double().cpu().numpy()

    def members(self, shape: Query, ids: Ints, known: Sets) -> Floats:
        """How likely each entity answers one query, (1, N), given the exact answers.

        `shape` may be a part of a larger one: its positions are columns of the ids.
        """
        if self.model is None:
            return _certain(known)
        from query2particles.engine.disjuncts import Disjuncts

        scores = Disjuncts.of(shape, self.unions).scores(self.model, ids, self.edges.entities)
        return self._of_scores(shape, ids, scores, known)

    def _of_scores(self, shape: Query, ids: Ints, scores: Tensor, known: Sets) -> Floats:
        """A softmax over what is open; 1 for what is known, 0 for what is ruled out or implausible."""
        from query2particles.ranking import Contexts, masked

        ruled_out = [refuted_answers(self.edges, {shape: ids}, workers=1)[shape]]
        if self.plausible is not None:
            ruled_out.append(self.plausible.echoes({shape: ids})[shape])
        never = union(ruled_out)
        contexts = Contexts.of(scores, masked(scores, union([known, never])), known)
        found = contexts.softmax(scores.double().cpu().numpy())
        if self.plausible is not None and (allowed := self.plausible.allowed(shape, ids)) is not None:
            found[~allowed] = 0.0
        is_known, is_out = (_certain(sets).astype(bool) for sets in (known, never))
        return np.where(is_known, 1.0, np.where(is_out, 0.0, found))


def _certain(known: Sets) -> Floats:
    found: Floats = (known.matrix().toarray() != known.complemented).astype(np.float64)
    return found


def find_evidence(
    graph: Graph,
    query: Query,
    entity: int,
    *,
    question: str,
    canonical: str,
    model: Method[Any] | None = None,
    judge: Judge | None = None,
    split: Split = "test",
    unions: Unions = "native",
    threshold: float = 0.5,
) -> Evidence:
    """The best tree of facts for an entity as an answer of a query."""
    estimates = Estimates(graph.at(split), model, unions, None if judge is None else judge.plausible)
    reasons: Mapping[str, float] = {}
    if model is None:
        search = _Search(graph, estimates, None, query, threshold)
        tree, probability = search.tree(entity), None
    else:
        from query2particles.engine.ranks import scoring

        with scoring(model):
            search = _Search(graph, estimates, judge, query, threshold)
            tree = search.tree(entity)
            probability = None if judge is None else search.probability(entity)
            if judge is not None and tree.fact is not None and not tree.fact.stored and search.is_one_hop:
                fact = tree.fact
                reasons = judge.reasons(fact.head.id, 2 * fact.relation.id, fact.tail.id)
    is_known = bool(np.isin(entity, search.known[-1][0]))
    certain = is_known and not has_complement(query)
    return Evidence(
        question,
        canonical,
        Named.of(graph.entities, entity),
        "predicted" if not is_known else "known" if certain else "supported",
        1.0 if certain else probability,
        threshold,
        tree.holds,
        tree,
        reasons,
    )


class _Search:
    """The search for one query: its nodes in the plan's order, branches before what they are branches of."""

    def __init__(self, graph: Graph, estimates: Estimates, judge: Judge | None, query: Query, threshold: float) -> None:
        self.graph, self.estimates, self.judge, self.threshold = graph, estimates, judge, threshold
        self.edges = estimates.edges
        self.shape, ids = abstract(query)
        self.ids = np.array([ids], dtype=np.int64)
        self.shapes = _in_order(self.shape)
        plan = compile_shapes((self.shape,), Exact.kind)
        self.nodes: Sequence[Node] = plan.nodes
        self.known: Sequence[Sets] = execute(plan, Exact(self.edges), [self.ids], keep=True)

    @property
    def is_one_hop(self) -> bool:
        return self.shape == SHAPES["1p"]

    def probability(self, entity: int) -> float:
        """That of the answer itself, as answers have it."""
        from query2particles.ranking import rank

        judge, model = self.judge, self.estimates.model
        assert judge is not None, "something tells how likely answers are"
        assert model is not None, "what is judged is a model"
        batch = {self.shape: self.ids}
        ranking = rank(model, self.edges, batch, 1, unions=self.estimates.unions, plausible=judge.plausible)[self.shape]
        score, asked = ranking.scores[:1, entity : entity + 1].double().cpu().numpy(), np.array([[entity]])
        if ranking.known.contain(asked)[0, 0]:
            return float(judge.kept(self.shape, self.ids, ranking, score)[0, 0])
        if union([ranking.refuted, judge.plausible.echoes(batch)[self.shape]]).contain(asked)[0, 0]:
            return 0.0
        return float(judge.open(self.shape, self.ids, ranking, score, asked)[0, 0])

    def tree(self, entity: int) -> Proof:
        """The best proof of one entity at the root."""
        tried: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(self.nodes)
        promises: list[Floats] = [np.zeros(0)] * len(self.nodes)
        links: dict[int, _Links] = {}
        tried[-1], promises[-1] = np.array([entity]), np.ones(1)
        for number in reversed(range(len(self.nodes))):
            node = self.nodes[number]
            if node.operator is Project:
                links[number] = own = self._links(node, tried[number], promises[number])
                tried[node.below[0]], promises[node.below[0]] = own.sources, own.promises
            elif node.operator is not Anchor:
                for branch in node.below:
                    tried[branch], promises[branch] = tried[number], promises[number]
        values: list[Floats] = []
        for number, node in enumerate(self.nodes):
            values.append(self._values(number, node, tried[number], values, links))
        return self._proof(len(self.nodes) - 1, 0, tried, values, links)

    def _links(self, node: Node, targets: Ints, promises: Floats) -> _Links:
        """The sources to try for the targets of a projection, and how likely each leads to each."""
        below, relation = node.below[0], int(self.ids[0, node.position])
        backward, _ = self.estimates.links(targets, np.full(len(targets), relation ^ 1))  # (targets, N)
        if self.nodes[below].operator is Anchor:
            sources: Ints = self.ids[:, self.nodes[below].position]
            promised = np.ones(1)
        else:
            members = self.estimates.members(self.shapes[below], self.ids, self.known[below])
            sources, promised = self._promising(promises[:, None] * backward * members)
        forward, scores = self.estimates.links(sources, np.full(len(sources), relation))  # (sources, N)
        stored = np.array([np.isin(sources, self.edges.tails_of(int(one), relation ^ 1)) for one in targets])
        if self.judge is None:
            both = np.sqrt(forward[:, targets].T * backward[:, sources])
        else:
            pairs = np.meshgrid(targets, sources, indexing="ij")
            ends, starts = (one.ravel().astype(np.int64) for one in pairs)
            facts = self.judge.guessed_facts(starts, np.full(len(starts), relation), ends)
            both = facts.reshape(len(targets), len(sources))
        return _Links(
            relation,
            sources,
            promised,
            np.where(stored, 1.0, both),
            stored,
            None if scores is None else scores[:, targets].T,
        )

    def _promising(self, worth: Floats) -> tuple[Ints, Floats]:
        """The sources that promise most, best first, and how much: of what each (targets, N) is worth the best."""
        each = min(_SOURCES if len(worth) > 1 else _WIDEST, worth.shape[1])
        best = np.argpartition(-worth, each - 1, axis=1)[:, :each]
        found = np.unique(best)
        promised = worth[:, found].max(0)
        order = np.argsort(-promised, kind="stable")[:_WIDEST]
        return found[order], promised[order]

    def _values(
        self, number: int, node: Node, entities: Ints, values: Sequence[Floats], links: dict[int, _Links]
    ) -> Floats:
        """What the best assignment below each of these entities is worth."""
        below = [values[branch] for branch in node.below]
        if node.operator is Anchor:
            return np.where(entities == self.ids[0, node.position], 1.0, 0.0)
        if node.operator is Project:
            return np.asarray((links[number].probabilities * below[0]).max(1))
        if node.operator is Intersect:
            return np.asarray(np.prod(below, axis=0))
        if node.operator is Union:
            return np.asarray(np.max(below, axis=0))
        return 1 - np.where(self._stored(node, entities), 1.0, below[0])

    def _stored(self, complement: Node, entities: Ints) -> npt.NDArray[np.bool_]:
        """Whether stored facts speak against these entities."""
        return np.isin(entities, self.known[complement.below[0]][0])

    def _proof(
        self, number: int, place: int, tried: Sequence[Ints], values: Sequence[Floats], links: dict[int, _Links]
    ) -> Proof:
        """The best proof of the entity at a place of those tried at a node."""
        node, value = self.nodes[number], float(values[number][place])
        index = int(tried[number][place])
        entity = Named.of(self.graph.entities, index)

        def proof(branch: int, at: int) -> Proof:
            return self._proof(branch, at, tried, values, links)

        if node.operator is Anchor:
            return Proof("anchor", Named.of(self.graph.entities, int(self.ids[0, node.position])), value)
        if node.operator is Project:
            own = links[number]
            source = int((own.probabilities[place] * values[node.below[0]]).argmax())
            fact = self._fact(own, place, source, index)
            return Proof("project", entity, value, (proof(node.below[0], source),), fact)
        if node.operator is Complement:
            against = values[node.below[0]][place]
            stored = bool(self._stored(node, tried[number][place : place + 1])[0])
            path = (proof(node.below[0], place),) if against >= _FLOOR else ()
            counter = 1.0 if stored else float(against)
            return Proof("complement", entity, value, path, None, stored, counter, self.threshold)
        if node.operator is Union:
            taken = max(node.below, key=lambda branch: values[branch][place])
            return Proof("union", entity, value, (proof(taken, place),))
        return Proof("intersect", entity, value, tuple(proof(branch, place) for branch in node.below))

    def _fact(self, links: _Links, target: int, source: int, entity: int) -> Fact:
        """A link in the direction in which facts are stored."""
        ends = [int(links.sources[source]), entity]
        head, tail = ends if links.relation % 2 == 0 else reversed(ends)
        stored = bool(links.stored[target, source])
        score = None if stored or links.scores is None else float(links.scores[target, source])
        return Fact(
            Named.of(self.graph.entities, head),
            Named.of(self.graph.relations, links.relation // 2),
            Named.of(self.graph.entities, tail),
            stored,
            float(links.probabilities[target, source]),
            score,
        )


@dataclass(frozen=True)
class _Links:
    """Between the sources and the targets that are tried at a projection."""

    relation: int
    sources: Ints
    promises: Floats  # (sources,)
    probabilities: Floats  # (targets, sources)
    stored: npt.NDArray[np.bool_]  # (targets, sources)
    scores: Floats | None  # (targets, sources)


def _in_order(shape: Query) -> list[Query]:
    """A shape's parts in the order of a plan's nodes."""
    return [part for branch in branches(shape) for part in _in_order(branch)] + [shape]
