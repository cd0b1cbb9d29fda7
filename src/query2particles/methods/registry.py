"""All trained methods by name: `--method NAME`, `q2p methods`. A new one is a file beside this and a line below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, cast

import torch
from torch import nn

from query2particles.engine.method import Method
from query2particles.graph.edges import Edges
from query2particles.methods import betae, cone, cqd, cqd_co, emql, gqe, links, q2b, q2p, tree
from query2particles.query.algebra import Complement, Intersect, Query, Union
from query2particles.query.rewrite import Unions

__all__ = ["METHODS", "Entry", "Model", "attach_stored", "make", "trainee_of"]


class Model(nn.Module, Method[Any]):
    """A method that is a module: what is trained and asked. For type checkers; methods just fulfil it."""


@dataclass(frozen=True)
class Entry:
    """What there is to know of a method before it is built."""

    title: str
    state: str
    """What a set of entities is to it."""
    method: Callable[..., nn.Module]
    settings: Callable[[], Any]
    """The class of its settings; its defaults are those of the preset `default`."""
    complement: Literal["exact", "learned", "extension", ""] = ""
    """How it has complements: by definition, as something learned, beyond its paper, or not at all."""

    @property
    def operators(self) -> frozenset[type[Query]]:
        found: frozenset[type[Query]] = getattr(self.method, "operators")  # noqa: B009  (a class, which mypy cannot know)
        return found

    @property
    def trains_another(self) -> bool:
        """Whether what is trained and saved is not the method itself, but what it answers on top of."""
        return hasattr(self.method, "trainee")

    @property
    def looks_up(self) -> bool:
        """Whether it answers from stored facts, too."""
        return hasattr(self.method, "attach")

    @property
    def unions(self) -> tuple[Unions, ...]:
        """How it can answer unions, its own way first."""
        possible: dict[Unions, bool] = {
            "native": Union in self.operators,
            "dnf": True,
            "de-morgan": {Complement, Intersect} <= self.operators,
        }
        return tuple(way for way, can in possible.items() if can)

    def specimen(self, settings: Any, entities: int = 3) -> nn.Module:
        """One for a tiny graph, to look at; random numbers go on as if it had not been made."""
        with torch.random.fork_rng(devices=()):
            return self.method(entities, 2, settings)

    def entity_tables(self, settings: Any) -> dict[str, int]:
        """Of what is trained, the parameters with a row for each entity, and how many numbers a row has."""
        three, two = (dict(trainee_of(self.specimen(settings, many)).named_parameters()) for many in (3, 2))
        return {name: one.numel() - two[name].numel() for name, one in three.items() if one.shape != two[name].shape}

    def numbers_per_entity(self, settings: Any) -> int:
        """How many parameters one more entity takes."""
        return sum(self.entity_tables(settings).values())


METHODS: Mapping[str, Entry] = MappingProxyType(
    {
        "q2p": Entry("Query2Particles (Bai et al. 2022)", "K vectors", q2p.Q2P, q2p.Settings, "learned"),
        "gqe": Entry("GQE (Hamilton et al. 2018)", "a vector", gqe.GQE, gqe.Settings),
        "q2b": Entry("Query2Box (Ren et al. 2020)", "a box", q2b.Q2B, q2b.Settings),
        "betae": Entry("BetaE (Ren and Leskovec 2020)", "Beta distributions", betae.BetaE, betae.Settings, "exact"),
        "cone": Entry("ConE (Zhang et al. 2021)", "sector cones", cone.ConE, cone.Settings, "exact"),
        "links": Entry("ComplEx, DistMult, TransE, RotatE", "a vector; chains only", links.Links, links.Settings),
        "cqd-beam": Entry("CQD-Beam (Arakelyan et al. 2021)", "a fuzzy set", cqd.CQDBeam, cqd.Settings, "extension"),
        "cqd-co": Entry("CQD-CO (Arakelyan et al. 2021)", "the query itself", cqd_co.CQDCO, cqd_co.Settings),
        "tree": Entry("Tree search over calibrated links", "a fuzzy set", tree.Tree, tree.Settings, "exact"),
        "emql": Entry("EmQL (Sun et al. 2020)", "a centroid and a sketch", emql.EmQL, emql.Settings),
    }
)


def make(name: str, edges: Edges, settings: Any) -> Model:
    """The untrained method for a graph, from the edges that it is trained on."""
    model = METHODS[name].method(edges.entities, edges.relations, settings)
    attach_stored(model, edges)
    return cast(Model, model)


def attach_stored(model: nn.Module, edges: Edges) -> None:
    """What is stored from now on, for methods that answer from stored facts, too; others do not look at it."""
    attach: Callable[[Edges], None] | None = getattr(model, "attach", None)
    if attach is not None:
        attach(edges)


def trainee_of(model: nn.Module) -> Model:
    """What of a method is trained and saved: the whole of it, unless it answers on top of another one."""
    return cast(Model, getattr(model, "trainee", model))
