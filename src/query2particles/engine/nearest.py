"""The best k entities of each query, by the score s(v), then by the smaller id: exact, and without sorting all of them.

**Of scores** (`best_of`): entities are taken in groups of neighbours. Order groups by their best score, then by their
place: an entity outside of the first k groups has k entities before it, one of each of them. So only the first k groups
are looked into, and all else that is done with scores is to find the maximum of each group.

**Of particles** (`nearest`), where s(v) = max_k ⟨p_k, e_v⟩ + b_v, a GPU need not even know all scores to the last bit.
With the bias as one more coordinate, and both sides divided by their greatest length, a and c,

    s(v) = a c max_k ⟨p̃_k, ẽ_v⟩        p̃ = (p, 1) / a        ẽ = (e, b) / c        ‖p̃‖, ‖ẽ‖ ≤ 1

p̃ and ẽ are rounded to float16, p̂ and ê, of which the products are many times as fast. By Cauchy and Schwarz

    |⟨p̃, ẽ⟩ − ⟨p̂, ê⟩| ≤ δ = ‖p̃ − p̂‖ + ‖p̂‖ max_v ‖ẽ_v − ê_v‖ + what adding up in float32 loses

so, if the coarse products of all but a few candidates are at most β, none of the others scores above a c (β + δ). The
candidates are scored again in float32. Where the k-th of them scores more than that, it is certain that the best k are
among them; the few queries of which it is not are answered from all scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from query2particles.engine.products import aligned, float16_products
from query2particles.errors import TrainingError

__all__ = ["Best", "best_of", "fitting", "nearest", "product_blocks", "refuse_nan", "select_best"]

_PRODUCT_BYTES = {"cpu": 1 << 24, "cuda": 1 << 29}
"""How much the products of all particles with a block of entities may take: on a CPU, what its caches hold."""

_FEW_ROWS = 256
"""Below this many particles, the product with the table on the left is faster on a CPU, up to six times."""

_NEIGHBOURS = 64
"""In a group of `best_of`."""

_COARSE_GROUP = 32
"""In a group of `nearest`."""

_MANY_ROWS = 512
"""With fewer particles, rounding the table takes longer than it saves."""

_ROUNDED_ON = frozenset({"cuda"})
"""Elsewhere products of float16 are slow."""

_MOST_NUMBERS = 1 << 29
"""In a table that is rounded, which takes memory."""

_ADDING_UP = 2.0**-21
"""What a product of vectors of length 1 loses at most, for each coordinate, together in three: one of float16, added up
on tensor cores, which cut off rather than round (2⁻²² each), and two of float32 in whichever order (2⁻²⁴ each)."""

_SHORTEST = 1e-15
"""Tables are taken to be no shorter: the squares of smaller numbers vanish."""

_LOW_BITS = (1 << 32) - 1


class Best(NamedTuple):
    """Of n queries, best first."""

    entities: Tensor  # (n, k)
    scores: Tensor  # (n, k)


def best_of(blocks: Iterable[tuple[int, Tensor]], k: int) -> Best:
    """From scores (n, m) of m entities at a time, with the id of the first; NaN is refused."""
    best, not_a_number = select_best(blocks, k)
    refuse_nan(not_a_number)  # last: the host waits here until all of it is done
    return best


def select_best(blocks: Iterable[tuple[int, Tensor]], k: int) -> tuple[Best, Tensor]:
    """The same, and whether there was a NaN, which the host need not know yet."""
    best: Tensor | None = None
    not_numbers = []
    for start, scores in blocks:
        keys, not_a_number = _first_keys(scores, start, k)
        not_numbers.append(not_a_number)
        merged = keys if best is None else torch.cat([best, keys], dim=1)
        best = merged.topk(min(k, merged.shape[1]), dim=1).values
    assert best is not None, "a graph has entities"
    return _unpacked(best), torch.stack(not_numbers).any()


def refuse_nan(found: Tensor) -> None:
    """NaN compares with nothing, so an answer of that score would rank first."""
    if bool(found):
        raise TrainingError("the method gave scores that are no numbers (NaN); train again at a lower rate")


def product_blocks(
    particles: Tensor, table: Tensor, bias: Tensor, block: int | None = None
) -> Iterator[tuple[int, Tensor]]:
    """The scores (n, m) of m entities at a time, with the id of the first; `block` entities, or what fits."""
    n, w, _ = particles.shape
    rows = particles.transpose(0, 1).flatten(0, 1)  # (w·n, d)
    block = block or fitting(_PRODUCT_BYTES, table.device, len(rows))
    for start in range(0, len(table), block):
        e, b = table[start : start + block], bias[start : start + block]
        product = (e @ rows.T).T + b if len(rows) < _FEW_ROWS else torch.addmm(b, rows, e.T)  # (w·n, m)
        yield start, product.view(w, n, len(e)).amax(0)


def fitting(limits: dict[str, int], device: torch.device, width: int) -> int:
    """How many rows of as many float32 numbers stay below the device's limit."""
    return max(1, limits["cpu" if device.type == "cpu" else "cuda"] // (4 * max(width, 1)))


def nearest(particles: Tensor, table: Tensor, bias: Tensor, k: int) -> Best:
    """The best k entities of queries with particles (n, w, d), of a table (N, d) with bias (N,); all float32.

    NaN is refused.
    """
    rows = particles.shape[0] * particles.shape[1]
    many = len(table) >= 4 * _COARSE_GROUP * _candidates(k) and rows >= _MANY_ROWS and table.numel() <= _MOST_NUMBERS
    if many and table.device.type in _ROUNDED_ON:
        return _nearest_by_rounding(particles, table, bias, k)
    # So many queries that a block of their products has many more groups than are looked into.
    together = fitting(_PRODUCT_BYTES, table.device, particles.shape[1] * 8 * k * _NEIGHBOURS)
    found = [best_of(product_blocks(some, table, bias), k) for some in torch.split(particles, together)]
    return found[0] if len(found) == 1 else Best(*map(torch.cat, zip(*found, strict=True)))


def _nearest_by_rounding(particles: Tensor, table: Tensor, bias: Tensor, k: int) -> Best:
    rounded = _Rounded.of(table, bias)
    together = fitting(_PRODUCT_BYTES, table.device, particles.shape[1] * len(table))
    blocks = [_probably_best(some, table, bias, rounded, k) for some in torch.split(particles, together)]
    keys, certain = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    best = _unpacked(keys)
    doubtful = (~certain).nonzero()[:, 0]  # the host waits here, until all of it is done
    if len(doubtful):
        for found, own in zip(best, best_of(product_blocks(particles[doubtful], table, bias), k), strict=True):
            found[doubtful] = own
    return best


class _Rounded(NamedTuple):
    """Vectors with one coordinate more, divided by the greatest length and rounded to float16."""

    vectors: Tensor  # (…, d′): as many coordinates as are multiplied fast, the last ones 0
    length: Tensor
    lost: Tensor  # ‖ẽ − ê‖, the most of any

    @staticmethod
    def of(vectors: Tensor, last: Tensor, dim: int | None = None) -> _Rounded:
        """With the length of all together, or, if those along a dimension belong together, of each such set."""
        wide = torch.cat([vectors, last[..., None]], -1)
        lengths = torch.linalg.vector_norm(wide, dim=-1)
        length = (lengths.amax() if dim is None else lengths.amax(dim, keepdim=True)[..., None]).clamp(min=_SHORTEST)
        wide = aligned(wide.div_(length))
        rounded = wide.half()
        lost = torch.linalg.vector_norm(wide.sub_(rounded), dim=-1)
        return _Rounded(rounded, length, lost.amax() if dim is None else lost.amax(dim))


def _probably_best(particles: Tensor, table: Tensor, bias: Tensor, e: _Rounded, k: int) -> tuple[Tensor, Tensor]:
    """The keys of the best k of the candidates, (n, k), and whether it is certain that nothing else is better, (n,)."""
    n, w, d = particles.shape
    groups = len(table) // _COARSE_GROUP
    grouped = groups * _COARSE_GROUP
    p = _Rounded.of(particles, particles.new_ones(n, w), dim=1)
    coarse = float16_products(p.vectors.flatten(0, 1), e.vectors[:grouped])  # (n·w, grouped)
    # Entity j · groups + g is in group g: maxima then run along memory.
    coarse = coarse.view(n, w * _COARSE_GROUP, groups)
    few = _candidates(k)
    chosen = coarse.amax(1).topk(few, dim=1, sorted=False).indices  # (n, few)
    members = coarse.gather(2, chosen[:, None].expand(-1, coarse.shape[1], -1))
    members = members.view(n, w, _COARSE_GROUP * few).amax(1)
    firsts = torch.arange(0, grouped, groups, device=table.device)
    ids = (firsts[:, None] + chosen[:, None]).flatten(1)  # (n, group · few)
    likely, places = members.topk(few, dim=1, sorted=False)
    others = torch.arange(grouped, len(table), device=table.device).expand(n, -1)  # in no group: always candidates
    candidates = torch.cat([ids.gather(1, places), others], 1)
    products = torch.bmm(particles, functional.embedding(candidates, table).mT)  # (n, w, candidates)
    keys = _keys(products.amax(1) + bias[candidates], candidates).topk(k, dim=1).values
    beyond = likely.amin(1)  # β, which no other member of these groups exceeds, and no other group: there are as many
    slack = p.lost + 1.001 * e.lost + (d + 8) * _ADDING_UP  # δ, with some room for how lengths were rounded
    most = p.length.flatten() * e.length * (beyond + 1.001 * slack)
    return keys, _unpacked(keys).scores[:, -1] > most  # not where any of it is NaN or infinite


def _candidates(k: int) -> int:
    """So many groups are looked into, and so many entities scored again: the k-th is well above those beyond."""
    return 2 * k + 12


def _first_keys(scores: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    """Of scores (n, m) of entities from `start` on, the keys of those that may be among the best k; and any NaN."""
    n, m = scores.shape
    groups = m // _NEIGHBOURS
    ids = torch.arange(start, start + m, device=scores.device)
    if groups <= 2 * k:
        return _keys(scores, ids), scores.isnan().any()
    grouped = groups * _NEIGHBOURS
    neighbours, others = scores[:, :grouped].view(n, groups, _NEIGHBOURS), scores[:, grouped:]
    maxima = neighbours.amax(2)  # NaN where any is
    best = _unpacked(_keys(maxima, ids[:groups] - start).topk(k, dim=1).values).entities  # (n, k) groups
    chosen = neighbours.gather(1, best[..., None].expand(-1, -1, _NEIGHBOURS)).flatten(1)
    members = ids[:grouped].view(groups, _NEIGHBOURS)[best].flatten(1)
    keys = torch.cat([_keys(chosen, members), _keys(others, ids[grouped:])], 1)
    return keys, maxima.isnan().any() | others.isnan().any()


def _keys(scores: Tensor, ids: Tensor) -> Tensor:
    """Integers (n, m), no two of a row equal, in the order of the scores, then of descending id."""
    bits = (scores + 0.0).view(torch.int32)  # adding zero makes −0 the same as 0
    return (_mirrored(bits).long() << 32) | (_LOW_BITS - ids)


def _unpacked(keys: Tensor) -> Best:
    return Best(_LOW_BITS - (keys & _LOW_BITS), _mirrored((keys >> 32).int()).view(torch.float32))


def _mirrored(bits: Tensor) -> Tensor:
    """The bits of floats as integers of the same order, and back: those of negative floats run the other way."""
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
