"""The CUDA kernels of tree search: from the scores of links to truths that several of them lead to, in one reading.

A query follows entities u to every entity v. How true the link is, and how true that makes v, would be written to
memory and read again at every step of the formula; here scores are read once, and only what all u of a query make of v
is written.

Only imported where there is a CUDA device (or Triton's interpreter, for tests): Triton comes with CUDA builds of torch.
"""

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["joined_ways", "log_totals"]

_BLOCK = 1024
_WARPS = 4
_LEAST = tl.constexpr(-1e30)
"""Below all scores, and a number."""
_TINY = tl.constexpr(2.0**-126)
"""What logarithms are taken of at the least: the smallest normal float32, as Triton takes a smaller one for float64."""


def log_totals(scores: Tensor) -> Tensor:
    """The logarithm of the sum of the exponentials of each row (n, N): (n,). No number of a row is written."""
    found = scores.new_empty(len(scores))
    _log_totals[(len(scores),)](scores, found, scores.stride(0), scores.shape[1], BLOCK=_BLOCK, num_warps=_WARPS)
    return found


def joined_ways(scores: Tensor, shifts: Tensor, most: float, x: Tensor, starts: Tensor, *, of_all: bool) -> Tensor:
    """Of rows (k + k′ + …, N) that belong to n queries in turn, from starts (n + 1,) on: logarithms of truths (n, N).

    The link of row u to v is log p = min(most, score + shift of u). By the best way, v is as true as max_u x(u) p; by
    all ways, as 1 − Π_u (1 − x(u) p). x: logarithms, (rows,).
    """
    n, columns = len(starts) - 1, scores.shape[1]
    found = scores.new_empty(n, columns)
    grid = n, triton.cdiv(columns, _BLOCK)
    sizes = scores.stride(0), columns, most
    _joined[grid](scores, shifts, x, starts, found, *sizes, OF_ALL=of_all, BLOCK=_BLOCK, num_warps=_WARPS)
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _log_totals(scores, found, stride, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Every lane has the highest of its scores so far, and its sum in relation to that."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    highest = tl.full([BLOCK], _LEAST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        score = tl.load(scores + row * stride + start + lanes, mask=start + lanes < columns, other=_LEAST)
        higher = tl.maximum(highest, score, tl.PropagateNan.ALL)
        total = total * tl.exp(highest - higher) + tl.exp(score - higher)
        highest = higher
    top = tl.max(highest, 0)
    tl.store(found + row, top + tl.log(tl.sum(total * tl.exp(highest - top), 0)))


@triton.jit
def _truths(scores, shifts, x, row, stride, column, inside, most):  # type: ignore[no-untyped-def]
    """How true one row makes every v: the logarithm of x(u) p(u, ·)."""
    score = tl.load(scores + row * stride + column, mask=inside, other=0.0)
    return tl.load(x + row) + tl.minimum(score + tl.load(shifts + row), most, tl.PropagateNan.ALL)


@triton.jit
def _log_of_rest(x):  # type: ignore[no-untyped-def]
    """The logarithm of 1 − a, of x = log a. Of small a by its series: 1 − a would be 1."""
    a = tl.exp(x)
    series = -a * (1.0 + a * (0.5 + a * (1.0 / 3 + a * 0.25)))
    return tl.where(a < 0.01, series, tl.log(tl.maximum(1.0 - a, _TINY, tl.PropagateNan.ALL)))


@triton.jit
def _log_of_rest_of(x):  # type: ignore[no-untyped-def]
    """The logarithm of 1 − eˣ, for the sum of such; of small −x by the series of 1 − eˣ. No truth is −∞."""
    series = -x * (1.0 + x * (0.5 + x * (1.0 / 6 + x / 24)))
    rest = tl.where(x > -0.01, series, 1.0 - tl.exp(x))
    return tl.log(tl.maximum(rest, _TINY, tl.PropagateNan.ALL))


@triton.jit  # type: ignore[untyped-decorator]
def _joined(  # type: ignore[no-untyped-def]
    scores, shifts, x, starts, found, stride, columns, most,
    OF_ALL: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)  # products of sizes may exceed 32 bits
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    first, stop = tl.load(starts + query), tl.load(starts + query + 1)
    total = _truths(scores, shifts, x, first, stride, column, inside, most)
    if OF_ALL:
        if stop - first > 1:
            total = _log_of_rest(total)
            for row in range(first + 1, stop):
                total += _log_of_rest(_truths(scores, shifts, x, row, stride, column, inside, most))
            total = _log_of_rest_of(total)
    else:
        for row in range(first + 1, stop):
            more = _truths(scores, shifts, x, row, stride, column, inside, most)
            total = tl.maximum(total, more, tl.PropagateNan.ALL)
    tl.store(found + query * columns + column, total, mask=inside)
