"""EmQL against its equations, spelled out one set and one triple at a time; and what its sketches promise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.errors import UsageError
from query2particles.graph.edges import Edges
from query2particles.methods.emql import EmQL, Settings, WeightedSets
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    abstract,
    anchor_positions,
    branches,
    query_ids,
)
from worlds import queries, random_graph

ENTITIES, STORED_RELATIONS = 20, 3
EDGES = random_graph(5, entities=ENTITIES, relations=STORED_RELATIONS, facts=90).at("train")
POSITIVE = [name for name in SHAPES if "n" not in name]
PRIME = 2**31 - 1

SMALL = Settings(dimension=6, triples=1000, depth=4, width=4096, length=1.5, dropout=0.0)
VARIANTS = {
    "with sketches": SMALL,
    "without": replace(SMALL, sketch=False),
    "few triples": replace(SMALL, triples=7),
    "few triples, without": replace(SMALL, triples=7, sketch=False),
    "crowded sketches": replace(SMALL, depth=2, width=9),
    "sharp": replace(SMALL, sharpness=9.0),
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)

Vector = npt.NDArray[np.float64]


def model_of(choice: Settings, edges: Edges = EDGES, seed: int = 0) -> EmQL:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = EmQL(edges.entities, edges.relations, choice).double().eval()
    model.attach(edges)
    return model


def run(model: EmQL, shape: Query, ids: npt.NDArray[np.int64]) -> WeightedSets:
    method: Any = model
    states: list[WeightedSets] = execute(compile_shapes((shape,), model.kind), method, [torch.from_numpy(ids)])
    return states[0]


@dataclass
class One:
    """One weighted set: centroid and sketch, the latter a table of rows."""

    centroid: Vector
    sketch: list[list[float]]


class Equations:
    """The operators of the paper, with the relation's triples alone; no batches, no rows, no slots."""

    def __init__(self, model: EmQL, edges: Edges) -> None:
        self.choice = model.settings
        self.e = model.entities.detach().numpy()
        factors, shifts = (hashes[:, 0].tolist() for hashes in (model.sketches._factors, model.sketches._shifts))
        self.functions = list(zip(factors, shifts, strict=True))
        self.triples = [
            (int(key) // edges.relations, int(key) % edges.relations, int(o))
            for row, key in enumerate(edges.keys)
            for o in edges.tails[edges.offsets[row] : edges.offsets[row + 1]]
        ]

    def cells(self, entity: int) -> list[int]:
        return [(a * entity + c) % PRIME % self.choice.width for a, c in self.functions]

    def sketch_of(self, weighted: Sequence[tuple[int, float]]) -> list[list[float]]:
        table = [[0.0] * self.choice.width for _ in self.functions]
        for entity, weight in weighted:
            for row, cell in zip(table, self.cells(entity), strict=True):
                row[cell] += weight
        return table

    def passes(self, entity: int, sketch: list[list[float]]) -> bool:
        return all(row[cell] > 0 for row, cell in zip(sketch, self.cells(entity), strict=True))

    def follow(self, one: One, relation: int) -> One:
        """The triples of the k best subjects, of which the sketch lets some pass, or all where it lets none; the
        first k of those, from the best subject down; their softmax weighs the objects.
        """
        k = self.choice.triples
        subjects = {s for s, r, _ in self.triples if r == relation}
        score = {s: self.choice.sharpness * float(one.centroid @ self.e[s]) for s in subjects}
        best = sorted(subjects, key=score.__getitem__, reverse=True)[:k]
        if self.choice.sketch:
            best = [s for s in best if self.passes(s, one.sketch)] or best
        retrieved = [(s, o) for s in best for subject, r, o in self.triples if (subject, r) == (s, relation)][:k]
        if not retrieved:
            return One(np.zeros(self.e.shape[1]), self.sketch_of([]))
        highest = max(score[s] for s, _ in retrieved)
        shares = [math.exp(score[s] - highest) for s, _ in retrieved]
        weighted = [(o, share / sum(shares)) for (_, o), share in zip(retrieved, shares, strict=True)]
        return One(np.sum([weight * self.e[o] for o, weight in weighted], axis=0), self.sketch_of(weighted))

    def of(self, query: Query) -> One:
        match query:
            case Anchor(entity):
                return One(self.e[entity], self.sketch_of([(entity, 1.0)]))
            case Project(inner, relation):
                return self.follow(self.of(inner), relation)
        parts = [self.of(branch) for branch in branches(query)]
        columns = list(zip(*(part.sketch for part in parts), strict=True))
        if isinstance(query, Intersect):
            least = [[min(cells) for cells in zip(*rows, strict=True)] for rows in columns]
            return One(np.sum([part.centroid for part in parts], axis=0), least)
        mean = [[sum(cells) / len(parts) for cells in zip(*rows, strict=True)] for rows in columns]
        return One(np.mean([part.centroid for part in parts], axis=0), mean)


def without_complements(query: Query) -> bool:
    return not isinstance(query, Complement) and all(map(without_complements, branches(query)))


def batch(seed: int, shape: Query, rows: int = 4, edges: Edges = EDGES) -> npt.NDArray[np.int64]:
    limits = np.full(len(tuple(query_ids(shape))), edges.relations)
    limits[anchor_positions(shape)] = edges.entities
    return np.random.default_rng(seed).integers(limits, size=(rows, len(limits)))


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[EmQL, Equations]]:
    pairs = {}
    for name, choice in VARIANTS.items():
        model = model_of(choice)
        pairs[name] = model, Equations(model, EDGES)
    return pairs


@each_variant
@settings(max_examples=25)
@given(query=queries(ENTITIES, STORED_RELATIONS).filter(without_complements))
def test_equations(models: dict[str, tuple[EmQL, Equations]], variant: str, query: Query) -> None:
    model, equations = models[variant]
    shape, ids = abstract(query)
    expected = equations.of(query)
    with torch.no_grad():
        state = run(model, shape, np.array([ids]))
        scores = model.score(state)
    np.testing.assert_allclose(state.centroid[0], expected.centroid, atol=1e-9)
    np.testing.assert_allclose(scores[0], equations.e @ expected.centroid, atol=1e-9)
    if model.settings.sketch:
        np.testing.assert_allclose(state.sketch[0], expected.sketch, atol=1e-9)


def exact(query: Query, edges: Edges) -> Iterator[set[int]]:
    """The answers on stored edges of every node, the root's last."""
    sets = []
    for branch in branches(query):
        inner = list(exact(branch, edges))
        yield from inner
        sets.append(inner[-1])
    match query:
        case Anchor(entity):
            yield {entity}
        case Project(_, relation):
            yield {int(o) for s in sets[0] for o in edges.tails_of(s, relation)}
        case Intersect():
            yield set.intersection(*sets)
        case Union():
            yield set.union(*sets)


@settings(max_examples=60)
@given(queries(ENTITIES, STORED_RELATIONS).filter(without_complements))
def test_sketches_hold_just_the_stored_answers(query: Query) -> None:
    """Faithful: as long as no step leads nowhere. Stored answers are in the sketch; with room enough, no others."""
    answers = list(exact(query, EDGES))
    if not all(answers):
        return
    for name in ("with sketches", "crowded sketches"):
        model = model_of(VARIANTS[name])
        shape, ids = abstract(query)
        with torch.no_grad():
            state = run(model, shape, np.array([ids]))
            found = model.sketches.weights(state.sketch, torch.arange(ENTITIES)[None])[0] > 0
        members = set(found.nonzero()[:, 0].tolist())
        assert members >= answers[-1]
        if name == "with sketches":
            assert members == answers[-1]


def crowded_row(edges: Edges) -> tuple[int, int, list[int]]:
    """The subject, relation and objects of the row with most triples."""
    row = int(np.argmax(edges.row_lengths))
    subject, relation = divmod(int(edges.keys[row]), edges.relations)
    return subject, relation, edges.tails_of(subject, relation).tolist()


def test_one_hop_ends_at_the_mean_of_the_objects() -> None:
    subject, relation, objects = crowded_row(EDGES)
    model = model_of(SMALL)
    with torch.no_grad():
        state = run(model, SHAPES["1p"], batch_of(subject, relation))
        np.testing.assert_allclose(state.centroid[0], model.entities[objects].mean(0), atol=1e-12)
        alone = run(model_of(replace(SMALL, sketch=False)), SHAPES["1p"], batch_of(subject, relation))
    assert not torch.allclose(state.centroid, alone.centroid)


def batch_of(subject: int, relation: int) -> npt.NDArray[np.int64]:
    shape, ids = abstract(Project(Anchor(subject), relation))
    assert shape == SHAPES["1p"]
    return np.array([ids])


def test_a_subject_without_triples_borrows_those_of_others() -> None:
    relation = 1
    missing = next(s for s in range(ENTITIES) if not len(EDGES.tails_of(s, relation)))
    choices = (SMALL, replace(SMALL, sketch=False))
    with torch.no_grad():
        faithful, free = (run(model_of(one), SHAPES["1p"], batch_of(missing, relation)) for one in choices)
    assert faithful.centroid.abs().sum() > 0
    torch.testing.assert_close(faithful.centroid, free.centroid, rtol=1e-9, atol=1e-9)


def test_a_relation_without_triples_leads_nowhere() -> None:
    edges = Edges.of(np.array([0, 1]), np.array([0, 0]), np.array([1, 2]), entity_count=4, relation_count=2)
    for choice in (SMALL, replace(SMALL, sketch=False)):
        model = model_of(choice, edges).train()
        shape, ids = abstract(Project(Project(Anchor(0), 2), 0))
        scores = model.score(run(model, shape, np.array([ids])))
        (slopes,) = torch.autograd.grad(scores.sum(), [model.entities])
        assert torch.isfinite(scores).all()
        assert torch.isfinite(slopes).all()
        shape, ids = abstract(Project(Anchor(0), 2))
        assert not model.score(run(model, shape, np.array([ids]))).any()


@each_variant
def test_gradients(variant: str) -> None:
    """Of two hops and an intersection, against differences; retrieval itself does not change for steps so small."""
    model = model_of(VARIANTS[variant])
    ids = batch(0, SHAPES["pi"], rows=2)

    def scores(entities: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(_Scores(model, SHAPES["pi"], ids), {"model.entities": entities}, ())
        return found

    start = model.entities.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(scores, start, fast_mode=True)


class _Scores(torch.nn.Module):
    def __init__(self, model: EmQL, shape: Query, ids: npt.NDArray[np.int64]) -> None:
        super().__init__()
        self.model, self.shape, self.ids = model, shape, ids

    def forward(self) -> Tensor:
        return self.model.score(run(self.model, self.shape, self.ids))


def test_gradients_reach_every_entity_of_the_relation() -> None:
    model = model_of(replace(SMALL, sketch=False))
    subject, relation, _ = crowded_row(EDGES)
    centroid = run(model, SHAPES["1p"], batch_of(subject, relation)).centroid
    (slopes,) = torch.autograd.grad(centroid.sum(), [model.entities])
    reached = slopes.abs().sum(1) > 0
    rows = EDGES.keys % EDGES.relations == relation
    subjects = (EDGES.keys[rows] // EDGES.relations).tolist()
    assert reached[subjects].all()
    assert reached[[int(o) for s in subjects for o in EDGES.tails_of(s, relation)]].all()


def test_order_of_branches_does_not_matter() -> None:
    model = model_of(SMALL)
    parts = [run(model, SHAPES["1p"], batch(seed, SHAPES["1p"])) for seed in range(3)]
    for operator in (model.intersect, model.union):
        results = [operator(order) for order in permutations(parts)]
        for other in results[1:]:
            torch.testing.assert_close(results[0], other)


def test_dropout_leaves_triples_out_in_training_only() -> None:
    """A share of a subject's only triple is missing as often as it says; then other subjects' objects stand in."""
    single = np.flatnonzero(EDGES.row_lengths[:-1] == 1)[0]
    subject, relation = divmod(int(EDGES.keys[single]), EDGES.relations)
    (only,) = EDGES.tails_of(subject, relation).tolist()
    ids = np.repeat(batch_of(subject, relation), 2000, axis=0)
    model = model_of(replace(SMALL, dropout=0.3, width=256))
    own = model.entities[only].detach()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        trained = run(model.train(), SHAPES["1p"], ids).centroid
        asked = run(model.eval(), SHAPES["1p"], ids).centroid
    assert torch.equal(asked, own.expand_as(asked))
    missing = ~torch.isclose(trained, own).all(1)
    assert 0.26 < missing.double().mean() < 0.34
    assert len(torch.unique(trained[missing], dim=0)) > 10


def test_only_embeddings_are_saved() -> None:
    """A model trained with sketches can be asked without, and the triples come from the graph."""
    model = model_of(SMALL)
    assert list(model.state_dict()) == ["entities"]
    bare = EmQL(ENTITIES, EDGES.relations, replace(SMALL, sketch=False)).double().eval()
    bare.load_state_dict(model.state_dict())
    bare.attach(EDGES)
    bare.attach(EDGES)
    ids = batch(0, SHAPES["2p"])
    expected = run(model_of(replace(SMALL, sketch=False)), SHAPES["2p"], ids)
    torch.testing.assert_close(run(bare, SHAPES["2p"], ids), expected)


def test_triples_are_asked_for() -> None:
    model = EmQL(ENTITIES, EDGES.relations, SMALL)
    with pytest.raises(UsageError, match="attach"):
        run(model, SHAPES["1p"], batch(0, SHAPES["1p"]))
    with pytest.raises(UsageError, match="20 entities and 8 directed relations"):
        EmQL(ENTITIES, 8, SMALL).attach(EDGES)


@pytest.mark.parametrize("name", POSITIVE)
def test_float32_is_float64_rounded(name: str) -> None:
    ids = batch(1, SHAPES[name], rows=20)
    model = model_of(SMALL)
    with torch.no_grad():
        precise = model.score(run(model, SHAPES[name], ids))
        single = model.float().score(run(model, SHAPES[name], ids))
    torch.testing.assert_close(single.double(), precise, rtol=1e-4, atol=1e-4)


def test_a_projection_is_one_graph() -> None:
    """No look at a value on the way: what compiles as a whole, for any number of queries, CUDA graphs can hold."""
    model = model_of(SMALL)
    follow = torch.compile(model.project, backend="eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5):
            ids = torch.from_numpy(batch(2, SHAPES["1p"], rows=rows))
            anchors, relations = model.anchor(ids[:, anchor_positions(SHAPES["1p"])[0]]), ids[:, 1] % EDGES.relations
            torch.testing.assert_close(follow(anchors, relations), model.project(anchors, relations))
