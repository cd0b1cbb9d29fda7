"""Tree search that vectors guide: a link predictor scores only what a method of vectors proposes.

Full search (`methods/tree`) follows every entity that may matter, and scores every link of each with all entities. Here
the state of the vectors, which is there for every set of the query, names a few entities in one product with a table:
the best m of each particle; stored facts name some more. Only these are followed, and only links between them are
scored. With the same truths p(u, r, v) as in full search,

    x(v) = max, or ⊥, over the u that were proposed for the set below of  x₁(u) ⊤ p(u, r, v)

and intersections, unions and complements join the truths of the same v. So how true a set is of an entity is computed
when it is asked: for what is proposed when the set is followed, and at the end for the answers that are proposed.
Complements are those of sets, whatever `negated_hops` says. All
other entities rank behind these, in the order of the vectors.

A link's truth needs the sum Z of exp φ(u, r, ·) over all tails. Those that are stored make up most of it and are
summed; a sample, the same for all, stands for the others.

With a `search`, such as an index, proposals come from there, and no product with the whole table is made: what was not
proposed then has no order of its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from query2particles.engine.method import paired
from query2particles.engine.ranks import Factored, all_scores
from query2particles.engine.table import Search
from query2particles.errors import UsageError
from query2particles.graph.edges import Edges
from query2particles.methods.stored import Stored, laid_out
from query2particles.methods.tree import Tree
from query2particles.methods.truth import FALSE
from query2particles.query.algebra import Query

__all__ = ["Guide", "Guided", "GuidedState"]

_LEAST_TRUTH, _BEHIND = -1e3, -1e4
"""Proposed answers are no less true than the one; all others score around the other."""

_VECTORS = {"cpu": 1 << 24, "cuda": 1 << 30}
"""How many numbers are computed at once, those of vectors among them."""


@dataclass(frozen=True, kw_only=True)
class Guide:
    """How much is proposed."""

    proposals: int = 64
    """m: of each particle, for a set that is followed."""
    answers: int = 256
    """The same for the answers."""
    tails: int = 64
    """Also proposed, of every relation that leads to a set: so many stored tails, those of the truest heads first."""
    sample: int = 1024
    """How many entities stand for the tails that are not stored; 0: all are summed, as in full search."""


class Entities(NamedTuple):
    """Sets of one entity each."""

    ids: Tensor  # (n,)


class Followed(NamedTuple):
    """What a relation leads to from entities u that are as true as x."""

    u: Tensor  # (n, k)
    x: Tensor  # (n, k)
    relations: Tensor  # (n,)


class Both(NamedTuple):
    branches: tuple[Any, ...]


class Either(NamedTuple):
    branches: tuple[Any, ...]


class Negated(NamedTuple):
    branch: Any


Set: TypeAlias = Entities | Followed | Both | Either | Negated


class GuidedState(NamedTuple):
    """The state of the vectors for n queries, and what their sets are made of."""

    vectors: Any
    made_of: Set


class Guided(nn.Module):
    """Over a method of vectors whose scores are inner products, and a tree search, both trained on the same graph."""

    replayed: ClassVar[bool] = False

    def __init__(
        self, vectors: Any, tree: Tree, edges: Edges, guide: Guide | None = None, search: Search | None = None
    ) -> None:
        super().__init__()
        if tree.stored is None:
            raise UsageError("the search does not know what is stored; call attach(edges) first")
        if not isinstance(tree.links, Factored):
            raise UsageError(
                f"a guided search needs links that score by products, model=complex or distmult, and not "
                f"{tree.settings.model}; best and tree search by any"
            )
        self.vectors, self.tree, self.guide, self.search = vectors, tree, guide or Guide(), search
        self.operators: frozenset[type[Query]] = frozenset(vectors.operators) & Tree.operators
        self.kind = paired(vectors.kind, _form)
        self._stored = tree.stored
        self._entities = edges.entities
        sample = torch.randperm(edges.entities, generator=torch.Generator().manual_seed(0))[: self.guide.sample]
        places = torch.full((edges.entities,), -1).scatter(0, sample, torch.arange(len(sample)))
        self.register_buffer("_sample", sample, persistent=False)
        self.register_buffer("_places", places, persistent=False)  # in the sample, of every entity; −1: it is not

    _sample: Tensor
    _places: Tensor

    def anchor(self, entities: Tensor) -> GuidedState:
        return GuidedState(self.vectors.anchor(entities), Entities(entities))

    def project(self, state: GuidedState, relations: Tensor, *, hop: int = 0) -> GuidedState:
        if isinstance(state.made_of, Entities):
            u = state.made_of.ids[:, None]
            x = self.tree.links.entities.new_zeros(u.shape)
        else:
            u = self._proposed(state, self.guide.proposals)
            x = self._truths(state.made_of, u).masked_fill(_repeated(u), FALSE)
        return GuidedState(self.vectors.project(state.vectors, relations, hop=hop), Followed(u, x, relations))

    def intersect(self, branches: Sequence[GuidedState]) -> GuidedState:
        vectors, sets = zip(*branches, strict=True)
        return GuidedState(self.vectors.intersect(vectors), Both(sets))

    def union(self, branches: Sequence[GuidedState]) -> GuidedState:
        vectors, sets = zip(*branches, strict=True)
        return GuidedState(self.vectors.union(vectors), Either(sets))

    def complement(self, state: GuidedState) -> GuidedState:
        return GuidedState(self.vectors.complement(state.vectors), Negated(state.made_of))

    def score(self, state: GuidedState, entities: Tensor | None = None) -> Tensor:
        v = self._proposed(state, self.guide.answers)
        x = self._truths(state.made_of, v).clamp(min=_LEAST_TRUTH)
        if self.search is None:
            others = all_scores(self.vectors, state.vectors, self._entities).log_softmax(1) + _BEHIND
        else:
            others = x.new_full((len(x), self._entities), _BEHIND)
        scores = others.to(x.dtype).scatter(1, v, x)
        return scores if entities is None else scores.gather(1, entities.expand(len(scores), -1))

    def stack(self, states: Sequence[GuidedState]) -> GuidedState:
        vectors, sets = zip(*states, strict=True)
        return GuidedState(self.vectors.stack(vectors), _leafwise(torch.cat, sets))

    def split(self, state: GuidedState, sizes: Sequence[int]) -> Sequence[GuidedState]:
        sets = []
        for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
            own = slice(start, start + size)
            sets.append(_leafwise(lambda leaf, own=own: leaf[0][own], (state.made_of,)))  # type: ignore[misc]
        return list(map(GuidedState, self.vectors.split(state.vectors, sizes), sets))

    def _proposed(self, state: GuidedState, count: int) -> Tensor:
        """The best entities of each particle, and stored ones, (n, ·); an entity may come more than once."""
        particles, table, bias = self.vectors.factors(state.vectors)
        if self.search is None:
            scores: Tensor = particles.float() @ table.float().T + bias  # (n, w, N)
            best = scores.topk(min(count, scores.shape[-1]), dim=-1).indices.flatten(1)
        else:
            each = particles.flatten(0, 1)[:, None]  # (n · w, 1, d)
            found = self.search.best(each, min(count, self._entities)).entities
            best = torch.as_tensor(found, device=particles.device).reshape(len(particles), -1)
        return torch.cat([best, *self._stored_in(state.made_of, best[:, :1])], 1) if self.guide.tails else best

    def _stored_in(self, made_of: Set, otherwise: Tensor) -> Iterator[Tensor]:
        """The first stored tails of each relation that leads there, (n, tails); an entity (n, 1) fills them up."""
        match made_of:
            case Followed(u, x, relations):
                order = x.argsort(dim=1, descending=True, stable=True)
                heads = u.gather(1, order).flatten()
                found = self._stored.of(heads, relations[:, None].expand_as(u).flatten())
                query = found.pairs // u.shape[1]  # ascending
                place = laid_out(torch.bincount(query, minlength=len(u)))[1]
                listed = otherwise.repeat(1, self.guide.tails)
                first = place < self.guide.tails
                listed[query[first], place[first]] = found.tails[first]
                yield listed
            case Both(branches) | Either(branches):
                for branch in branches:
                    yield from self._stored_in(branch, otherwise)

    def _truths(self, made_of: Set, v: Tensor) -> Tensor:
        """As logarithms, how true a set is of entities (n, m)."""
        norm = self.tree.norm
        match made_of:
            case Entities(ids):
                return torch.where(v == ids[:, None], 0.0, FALSE).to(self.tree.links.entities.dtype)
            case Followed(u, x, relations):
                blocks = zip(*(torch.split(part, self._at_once(u, v)) for part in (u, x, relations, v)), strict=True)
                return torch.cat([self._reached(*block) for block in blocks])
            case Both(branches):
                return reduce(norm.both, (self._truths(branch, v) for branch in branches))
            case Either(branches):
                return reduce(norm.either, (self._truths(branch, v) for branch in branches))
            case Negated(branch):
                return self.tree.negated(self._truths(branch, v))

    def _at_once(self, u: Tensor, v: Tensor) -> int:
        """Of how many queries all that is computed of entities (n, k), (n, m) fits the memory set aside for it."""
        k, m, d = u.shape[1], v.shape[1], self.tree.links.entities.shape[1]
        numbers = (k + m) * d + k * (m + (len(self._sample) or self._entities))
        return max(1, _VECTORS["cuda" if u.is_cuda else "cpu"] // numbers)

    def _reached(self, u: Tensor, x: Tensor, relations: Tensor, v: Tensor) -> Tensor:
        truths = self.tree.norm.both(x[..., None], self._links(u, relations, v)).movedim(1, 0)
        return self.tree.joined(truths, self.tree.settings.several)

    def _links(self, u: Tensor, relations: Tensor, v: Tensor) -> Tensor:
        """As logarithms, p(u, r, v) of entities (n, k) and (n, m) under relations (n,): (n, k, m)."""
        links, settings = self.tree.links, self.tree.settings
        heads, r = u.flatten(), relations[:, None].expand_as(u).flatten()
        stored = self._stored.of(heads, r)
        led = settings.sharpness * links.project(links.anchor(heads), r)  # (n · k, d)
        scores = led.view(*u.shape, led.shape[1]) @ links.entities[v].mT  # (n, k, m)
        expected = stored.counts.to(scores.dtype).clamp(min=settings.unseen).log()
        totals = self._log_totals(led, stored, heads, r)
        placed = self._placing(u.shape[1], v)
        if settings.walks:
            walked = self.tree.walked(heads, r)
            totals, by_walks = walked.beside(totals)
            scores = torch.logaddexp(scores, placed(walked.pairs, walked.tails, by_walks, FALSE))
        p = scores + (expected - totals).view(*u.shape, 1)
        if settings.threshold:
            p = p.masked_fill(p < math.log(settings.threshold), FALSE)
        echo = (u[..., None] == v[:, None]) & (self._stored.loops[relations] == 0)[:, None, None]
        p = p.masked_fill(echo, FALSE)
        known = placed(stored.pairs, stored.tails, torch.ones_like(stored.tails, dtype=torch.bool), 0)
        return torch.where(known, 0.0, p.clamp(max=math.log(settings.certain)))

    def _placing(self, k: int, v: Tensor) -> Callable[[Tensor, Tensor, Tensor, float], Tensor]:
        """Of k heads of each query, values of some tails (tails,), where its entities v (n, m) are these: (n, k, m)."""
        n, m = v.shape
        ordered = v.sort(dim=1).values
        rows = torch.arange(n, device=v.device)[:, None] * self._entities  # makes ids of different queries differ
        keys = (ordered + rows).flatten()  # ascending

        def place_of(wanted: Tensor) -> Tensor:
            """The first place of each key, whether it is there or not."""
            return torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)

        once = place_of(v + rows) % m  # an entity that comes more than once has one place

        def placed(pairs: Tensor, tails: Tensor, values: Tensor, otherwise: float) -> Tensor:
            wanted = tails + pairs // k * self._entities
            place = place_of(wanted)
            there = keys[place] == wanted
            found = values.new_full((n * k, m), otherwise)
            found[pairs[there], place[there] % m] = values[there]
            return found.view(n, k, m).gather(2, once[:, None].expand(n, k, m))

        return placed

    def _log_totals(self, led: Tensor, stored: Stored, heads: Tensor, relations: Tensor) -> Tensor:
        """As logarithms, Z of heads and relations (n,), given where they lead."""
        table = self.tree.links.entities
        if not len(self._sample):
            return self._stored.without_echo(led @ table.T, heads, relations, FALSE).logsumexp(1)
        place = self._places[stored.tails]
        among = torch.zeros(len(led), len(self._sample), dtype=torch.bool, device=led.device)
        among[stored.pairs[place >= 0], place[place >= 0]] = True
        echoes, own = self._stored.loops[relations] == 0, self._places[heads]
        rows = (echoes & (own >= 0)).nonzero()[:, 0]
        among[rows, own[rows]] = True
        each = (self._entities - stored.counts - echoes.long()) / (~among).sum(1).clamp(min=1)  # that one stands for
        rest = (led @ table[self._sample].T).masked_fill(among, -torch.inf).logsumexp(1) + each.log()
        scores = _products(led, table, stored)
        highest = rest.scatter_reduce(0, stored.pairs, scores, "amax")
        known = torch.zeros_like(rest).index_add(0, stored.pairs, (scores - highest[stored.pairs]).exp())
        return highest + (known + (rest - highest).exp()).log()


def _products(led: Tensor, table: Tensor, stored: Stored) -> Tensor:
    """Where each pair leads (n, d) with each of its stored tails: (tails,). No vector is copied for that."""
    starts = functional.pad(stored.counts.cumsum(0), (1, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        wanted = torch.sparse_csr_tensor(
            starts,
            stored.tails,
            led.new_zeros(len(stored.tails)),
            size=(len(led), len(table)),
            check_invariants=False,
        )
    found: Tensor = torch.sparse.sampled_addmm(wanted, led, table.T, beta=0.0).values()
    return found


def _repeated(ids: Tensor) -> Tensor:
    """Where an id (n, k) has come before in its row."""
    ordered, places = ids.sort(dim=1, stable=True)
    again = torch.zeros_like(ids, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(again).scatter(1, places, again)


def _leafwise(function: Callable[[list[Tensor]], Tensor], sets: Sequence[Any]) -> Any:
    """Sets of the same form, tensor by tensor."""
    first = sets[0]
    if isinstance(first, Tensor):
        return function(list(sets))
    parts = [_leafwise(function, part) for part in zip(*sets, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def _form(operator: type[Query], below: Sequence[Hashable]) -> Hashable:
    """Sets of the same form can be stacked."""
    return operator, *below
