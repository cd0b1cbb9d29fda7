"""Small graphs and random queries for tests, and the plain-Python oracle that the engine is judged by."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from query2particles.graph.graph import Graph, Split
from query2particles.graph.vocabulary import Vocabulary
from query2particles.query.algebra import (
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    numbered,
    query_ids,
)

Successors = Mapping[tuple[int, int], set[int]]

ENTITIES = [
    "Turing Award",
    "Canada",
    "Israel",
    "MIT",
    "McGill University",
    "Ann",
    "Bob",
    "Springfield (Illinois)",
    "Springfield (Ohio)",
    'odd "name" \\ with.signs & more',
    "exists",
]
LABELS = [*ENTITIES[:7], "Springfield", "Springfield", *ENTITIES[9:]]
RELATIONS = ["award_received", "citizen_of", "graduated_from", "lives in"]
FACTS = [
    ("Ann", "award_received", "Turing Award"),
    ("Bob", "award_received", "Turing Award"),
    ("Ann", "citizen_of", "Canada"),
    ("Bob", "citizen_of", "Israel"),
    ("Ann", "graduated_from", "McGill University"),
    ("Bob", "graduated_from", "MIT"),
    ("Ann", "lives in", "Springfield (Illinois)"),
    ("Bob", "lives in", "Springfield (Ohio)"),
    ('odd "name" \\ with.signs & more', "citizen_of", "exists"),
]


TABLES = {"matrix", "counting_matrix", "row_bounds", "row_lengths", "heads_by_relation", "_row_table", "_damage"}
"""What `Edges` builds that grows with the edges or the entities, which a large graph must do without."""


def named_graph() -> Graph:
    """A handful of readable facts, with odd names and an ambiguous label."""
    ids = [(ENTITIES.index(h), RELATIONS.index(r), ENTITIES.index(t)) for h, r, t in FACTS]
    heads, relations, tails = np.array(ids).T
    return Graph.of(
        Vocabulary.of(ENTITIES, LABELS),
        Vocabulary.of(RELATIONS),
        {"train": (heads, relations, tails)},
        {"name": "named", "prefixes": {"ex": "http://example.org/"}},
    )


def random_graph(seed: int, entities: int = 30, relations: int = 4, facts: int = 120) -> Graph:
    """A random graph with facts in all three splits."""
    generator = np.random.default_rng(seed)
    columns = (
        generator.integers(entities, size=facts),
        generator.integers(relations, size=facts),
        generator.integers(entities, size=facts),
    )
    bounds: dict[Split, slice] = {
        "train": slice(0, facts * 6 // 10),
        "valid": slice(facts * 6 // 10, facts * 8 // 10),
        "test": slice(facts * 8 // 10, facts),
    }
    return Graph.of(
        Vocabulary.of([f"e{i}" for i in range(entities)]),
        Vocabulary.of([f"r{i}" for i in range(relations)]),
        {split: (columns[0][part], columns[1][part], columns[2][part]) for split, part in bounds.items()},
        {"name": f"random-{seed}"},
    )


def queries(entities: int, stored_relations: int, max_leaves: int = 6) -> st.SearchStrategy[Query]:
    """Random trees of operators with ids in range."""
    anchors: st.SearchStrategy[Query] = st.builds(Anchor, st.integers(0, entities - 1))
    relation = st.integers(0, 2 * stored_relations - 1)

    def grow(inner: st.SearchStrategy[Query]) -> st.SearchStrategy[Query]:
        several = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.one_of(
            st.builds(Project, inner, relation),
            st.builds(Project, inner, relation),
            st.builds(Intersect, several),
            st.builds(Union, several),
            st.builds(Complement, inner),
        )

    return st.recursive(anchors, grow, max_leaves=max_leaves)


def random_query(generator: random.Random, entities: int, stored_relations: int, depth: int = 4) -> Query:
    """One random tree, without hypothesis: for long loops."""
    kind = generator.choice("eppppiun") if depth else "e"
    below = depth - 1
    match kind:
        case "p":
            inner = random_query(generator, entities, stored_relations, below)
            return Project(inner, generator.randrange(2 * stored_relations))
        case "n":
            return Complement(random_query(generator, entities, stored_relations, below))
        case "i" | "u":
            several = tuple(
                random_query(generator, entities, stored_relations, below) for _ in range(generator.choice((2, 2, 3)))
            )
            return Intersect(several) if kind == "i" else Union(several)
        case _:
            return Anchor(generator.randrange(entities))


def successors(graph: Graph, split: Split) -> Successors:
    """(head, directed relation) → tails, as plain Python sets."""
    edges = graph.at(split)
    found: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for row, key in enumerate(edges.keys.tolist()):
        tails = edges.tails[edges.offsets[row] : edges.offsets[row + 1]]
        found[divmod(key, edges.relations)] = set(tails.tolist())
    return found


def oracle(query: Query, known: Successors, everything: frozenset[int]) -> set[int]:
    """The answers, by the definition of each operator."""
    match query:
        case Anchor(entity):
            return {entity}
        case Project(inner, relation):
            reached: set[int] = set()
            for head in oracle(inner, known, everything):
                reached |= known.get((head, relation), set())
            return reached
        case Intersect(several):
            return set.intersection(*(oracle(branch, known, everything) for branch in several))
        case Union(several):
            return set().union(*(oracle(branch, known, everything) for branch in several))
        case Complement(inner):
            return set(everything - oracle(inner, known, everything))


def lacking(query: Query, v: int, stored: Successors, whole: Successors) -> float:
    """How many edges the best proof of v lacks, by looking at all of them; infinite where there is none."""
    match query:
        case Anchor(e):
            return 0 if v == e else math.inf
        case Project(inner, r):
            return min(
                (
                    lacking(inner, u, stored, whole) + (v not in stored.get((u, r), ()))
                    for u in whole.get((v, r ^ 1), ())
                ),
                default=math.inf,
            )
        case Intersect(several):
            return sum(lacking(branch, v, stored, whole) for branch in several)
        case Union(several):
            return min(lacking(branch, v, stored, whole) for branch in several)
        case Complement(inner):
            return math.inf if lacking(inner, v, stored, whole) < math.inf else 0


def by_shape(several: Sequence[Query]) -> tuple[dict[Query, list[tuple[int, ...]]], list[tuple[Query, int]]]:
    """Queries as a batch, their branches as they stand; and for each in turn its shape and its row there."""
    batch: defaultdict[Query, list[tuple[int, ...]]] = defaultdict(list)
    places = []
    for query in several:
        shape = numbered(query)
        places.append((shape, len(batch[shape])))
        batch[shape].append(tuple(query_ids(query)))
    return batch, places
