"""A part of NELL as a file of facts, such as a user has: `python benchmarks/nell_sample.py --out FILE.tsv`

All splits together, by names that people can read. Entities are those that a breadth-first search from a few random
ones meets first; of the facts among them, random ones are kept, and of every entity at least one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from scipy import sparse

from query2particles.errors import Query2ParticlesError, UsageError
from query2particles.files import new_file
from query2particles.graph.edges import Ints
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph
from query2particles.graph.vocabulary import Vocabulary

_SEEDS = 10
"""So many random entities the search starts from."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a part of NELL as a TSV file of facts.")
    parser.add_argument("--out", type=Path, required=True, help="the TSV file to write")
    parser.add_argument("--data", type=Path, default=os.environ.get("Q2P_DATA"), help="folder of benchmark graphs")
    parser.add_argument("--entities", type=int, default=25_000, help="how many (default: 25,000)")
    parser.add_argument("--facts", type=int, default=75_000, help="how many (default: 75,000)")
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    if told.data is None:
        parser.error("name the folder of the benchmark graphs: --data DIR, or set Q2P_DATA")
    try:
        graph = open_graph(told.data / "NELL")
        facts = sample(graph, told.entities, told.facts, seed=told.seed)
        with new_file(told.out) as partial:
            write(partial, graph, facts)
    except Query2ParticlesError as error:
        sys.exit(f"error: {error}")


def sample(graph: Graph, entities: int, facts: int, *, seed: int = 0) -> Ints:
    """Facts (facts, 3) among so many entities, relations as stored, in random order."""
    rng = np.random.default_rng(seed)
    edges = graph.at("test")
    heads, relations = edges.heads_and_relations()
    forward = relations % 2 == 0
    pool = np.stack([heads[forward], relations[forward] // 2, edges.tails[forward]], axis=1)
    met = np.zeros(edges.entities, dtype=bool)
    met[_first_met(pool, edges.entities, entities, rng)] = True
    inside = rng.permutation(pool[met[pool[:, 0]] & met[pool[:, 2]]])
    ends = inside[:, [0, 2]].ravel()  # those of fact i are at 2i and 2i + 1
    first = np.unique(np.unique(ends, return_index=True)[1] // 2)  # of every entity, the first fact
    if not len(first) <= facts <= len(inside):
        raise UsageError(
            f"{entities:,} entities need from {len(first):,} to {len(inside):,} facts, not {facts:,}: ask for others"
        )
    others = np.setdiff1d(np.arange(len(inside)), first)
    return inside[np.sort(np.append(first, others[: facts - len(first)]))]


def _first_met(pool: Ints, everything: int, wanted: int, rng: np.random.Generator) -> Ints:
    """The entities that are met first, each with a neighbour among them."""
    ones = np.ones(len(pool), dtype=bool)
    matrix = sparse.csr_array((ones, (pool[:, 0], pool[:, 2])), shape=(everything, everything))
    both = (matrix + matrix.T).tocsr()
    having = rng.permutation(np.flatnonzero(np.diff(both.indptr)))
    if wanted > len(having):
        raise UsageError(f"there are {len(having):,} entities, {wanted:,} were asked for")
    met = dict.fromkeys(having[:_SEEDS].tolist())
    queue = list(met)
    for entity in queue:  # which grows meanwhile
        found = both.indices[both.indptr[entity] : both.indptr[entity + 1]]
        for other in rng.permutation(found).tolist():
            if other not in met:
                met[other] = None
                queue.append(other)
        if len(met) >= wanted:
            break
    if len(met) < wanted:
        raise UsageError(f"the search met {len(met):,} entities, {wanted:,} were asked for: try another --seed")
    return np.array(queue[:wanted])


def write(path: Path, graph: Graph, facts: Ints) -> None:
    """Lines of three names."""
    entities, relations = _names(graph.entities), _names(graph.relations)
    with path.open("w", encoding="utf-8") as file:
        for head, relation, tail in facts.tolist():
            file.write(f"{entities[head]}\t{relations[relation]}\t{entities[tail]}\n")


def _names(vocabulary: Vocabulary) -> list[str]:
    """Labels; of those that several share, the stored names."""
    labels = [vocabulary.label(number) for number in range(len(vocabulary))]
    shared = Counter(labels)
    return [label if shared[label] == 1 else vocabulary.name(number) for number, label in enumerate(labels)]


if __name__ == "__main__":
    main()
