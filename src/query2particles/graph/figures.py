"""The figures of a graph, for people and for JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from query2particles.graph.graph import Graph

__all__ = ["graph_figures"]


def graph_figures(graph: Graph) -> dict[str, Any]:
    """Counts, the facts of each relation, the entities with most facts, and what is said about the graph."""
    edges = graph.at("test")
    by_relation = edges.edges_by_relation[::2]
    degrees = edges.degrees
    busiest = np.argsort(-degrees, kind="stable")[:5].tolist()
    return {
        "name": graph.name,
        "entities": len(graph.entities),
        "relations": len(graph.relations),
        "facts": graph.facts(),
        "facts_total": edges.facts,
        "facts_by_relation": {
            graph.relations.name(relation): int(by_relation[relation])
            for relation in np.argsort(-by_relation, kind="stable").tolist()
        },
        "median_degree": float(np.median(degrees)),
        "busiest_entities": {graph.entities.name(entity): int(degrees[entity]) for entity in busiest},
        "fingerprint": graph.fingerprint,
        "about": dict(graph.about),
    }
