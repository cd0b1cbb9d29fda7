"""A reasoner whose model has learned nothing: what it says is arbitrary, but must be said right."""

from __future__ import annotations

import torch

from query2particles.answer import Reasoner
from query2particles.calibration import Calibration
from query2particles.graph.graph import Graph
from query2particles.methods.q2p import Q2P, Settings

__all__ = ["random_reasoner"]


def random_reasoner(graph: Graph) -> Reasoner:
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        settings = Settings(dimension=8, entity_scale=0.5)
        model = Q2P(len(graph.entities), graph.at("train").relations, settings).eval()
    calibration = Calibration.by_scores(model, graph.at("train").relations)
    return Reasoner(graph, model=model, calibration=calibration, split="train")
