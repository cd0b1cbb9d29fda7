"""The CUDA kernels of `engine/pairs`: sums over dimensions for every pair, and their derivatives, for any term.

A term is a function of tensors. It is traced once, with its derivatives, to a list of elementwise operations; the list
is written down again as functions of Triton, which two kernels call for whole tiles:

    sums      a tile of queries × entities stays in registers, and dimension after dimension is added to it
    slopes    a tile of rows × dimensions of one side stays in registers, with its derivatives, and row after row of the
              other side is met with it; every place is written by one program, so results are the same every time

Operands are copied first, to float32, filled up with zeros to whole tiles: no kernel needs a mask.

Only imported where there is a CUDA device (or Triton's interpreter, for tests): Triton comes with CUDA builds of torch.
"""

import hashlib
import linecache
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from query2particles.errors import UsageError

__all__ = ["left_slopes", "right_slopes", "sums"]

Term = Callable[..., Tensor]

_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
_PAIRS = 64
"""Queries, and entities, of a tile of sums: each of 128 threads has 8 × 4 pairs, and for each dimension reads 8 numbers
of a tensor of queries, 4 of one of entities. As there are more threads than numbers along a tile, Triton lets every
thread read what it needs; otherwise it would pass them on through shared memory, with two barriers a dimension."""
_DIMENSIONS = 32
"""Of a tile of slopes, with 64 rows, 16 places a thread, where a side has one or two tensors: these and their
derivatives take up to 64 registers. So do four tensors with 32 rows. With what a term needs on the way, of the terms of
all methods 3 programs or more fit on a multiprocessor; with 64 rows, only 2 for the queries of ConE would."""
_PROGRAMS = 4096
"""So many programs are several rounds on the 132 multiprocessors of an H200. Where tiles of slopes are fewer, programs
share a tile, each with a part of the other side's rows."""
_PART = 64
"""The fewest rows of such a part."""


def sums(term: Term, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """(n, m): Σ_j term(*left_ij, *right_vj), for `left` tensors (n, d) and `right` ones (m, d)."""
    queries, entities = (_filled([one.T for one in side], 1, _PAIRS) for side in (left, right))
    (count, d, n), m = queries.shape, entities.shape[2]
    found = queries.new_zeros(n, m)
    value = _translated(term, count, len(right)).value
    grid = m // _PAIRS, n // _PAIRS
    _sums[grid](queries, entities, found, n, m, d, value, count, len(right), _PAIRS, **_OPTIONS)
    return found[: len(left[0]), : len(right[0])].to(left[0].dtype)


def left_slopes(term: Term, left: Sequence[Tensor], right: Sequence[Tensor], slope: Tensor) -> list[Tensor]:
    """The derivatives by the `left` tensors, from those by the sums, (n, m)."""
    return _slopes_of(left, right, slope.T, _translated(term, len(left), len(right)).by_left)


def right_slopes(term: Term, left: Sequence[Tensor], right: Sequence[Tensor], slope: Tensor) -> list[Tensor]:
    """The derivatives by the `right` tensors."""
    return _slopes_of(right, left, slope, _translated(term, len(left), len(right)).by_right)


def _slopes_of(own: Sequence[Tensor], other: Sequence[Tensor], slope: Tensor, derivatives: Any) -> list[Tensor]:
    """For `slope` (rows of the other side, rows of the own one)."""
    tile = 64 if len(own) <= 2 else 32
    mine, theirs, weights = _filled(own, tile, _DIMENSIONS), _filled(other, 1, _DIMENSIONS), _filled([slope], 1, tile)
    (count, rows, d), others = mine.shape, theirs.shape[1]
    tiles = rows // tile, d // _DIMENSIONS
    part = max(_PART, triton.cdiv(others * math.prod(tiles), _PROGRAMS))
    grid = *tiles, triton.cdiv(others, part)
    found = mine.new_empty(grid[2], count, rows, d)
    sizes = rows, others, d, part
    _slopes[grid](mine, theirs, weights, found, *sizes, derivatives, count, len(other), tile, _DIMENSIONS, **_OPTIONS)
    whole = found.sum(0)[:, : own[0].shape[0], : own[0].shape[1]]
    return [slopes.to(one.dtype) for slopes, one in zip(whole, own, strict=True)]


def _filled(tensors: Sequence[Tensor], rows: int, columns: int) -> Tensor:
    """Float32 copies (k, ·, ·), with zeros behind them up to multiples of `rows` and `columns`."""
    height, width = tensors[0].shape
    shape = len(tensors), triton.cdiv(height, rows) * rows, triton.cdiv(width, columns) * columns
    filled = tensors[0].new_zeros(shape, dtype=torch.float32)
    for place, one in zip(filled, tensors, strict=True):
        place[:height, :width] = one
    return filled


@triton.jit  # type: ignore[untyped-decorator]
def _vectors(start, stride, offsets, count: tl.constexpr, axis: tl.constexpr):  # type: ignore[no-untyped-def]
    """One of each of `count` tensors, with an axis of length one beside it."""
    found: tl.tuple = ()
    for k in tl.static_range(count):
        found += (tl.expand_dims(tl.load(start + k * stride + offsets), axis),)
    return found


@triton.jit(do_not_specialize=["d"])  # type: ignore[untyped-decorator]
def _sums(  # type: ignore[no-untyped-def]
    queries, entities, sums, n, m, d,
    term: tl.constexpr, left: tl.constexpr, right: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    n, m = tl.cast(n, tl.int64), tl.cast(m, tl.int64)  # products of sizes may exceed 32 bits
    i = tl.program_id(1) * tile + tl.arange(0, tile)
    v = tl.program_id(0) * tile + tl.arange(0, tile)
    places = sums + i[:, None] * m + v[None, :]
    # Read, though all are zeros: the loop keeps them as they were read, 8 × 4 a thread. Made here, they were 32 × 1.
    total = tl.load(places)
    for j in range(d):
        total += term(_vectors(queries + j * n, d * n, i, left, 1), _vectors(entities + j * m, d * m, v, right, 0))[0]
    tl.store(places, total)


@triton.jit(do_not_specialize=["others", "part"])  # type: ignore[untyped-decorator]
def _slopes(  # type: ignore[no-untyped-def]
    mine, theirs, weights, slopes, rows, others, d, part,
    derivatives: tl.constexpr, own: tl.constexpr, other: tl.constexpr, tile: tl.constexpr, dimensions: tl.constexpr,
):  # fmt: skip
    rows, d = tl.cast(rows, tl.int64), tl.cast(d, tl.int64)
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    j = tl.program_id(1) * dimensions + tl.arange(0, dimensions)
    places = row[:, None] * d + j[None, :]
    held: tl.tuple = ()
    totals: tl.tuple = ()
    for k in tl.static_range(own):
        held += (tl.load(mine + k * rows * d + places),)
        totals += (tl.zeros([tile, dimensions], tl.float32),)
    start = tl.program_id(2) * part
    for v in range(start, tl.minimum(start + part, others)):
        weight = tl.load(weights + v * rows + row)[:, None]
        found = derivatives(held, _vectors(theirs + v * d, others * d, j, other, 0))
        more: tl.tuple = ()
        for k in tl.static_range(own):
            more += (totals[k] + weight * found[k],)
        totals = more
    for k in tl.static_range(own):
        tl.store(slopes + (tl.program_id(2) * own + k) * rows * d + places, totals[k])


class _Translated(NamedTuple):
    """Functions of Triton: a side's `own` tiles and the `other` side's, in tuples, to a tuple of tiles."""

    value: Any  # own: the left ones
    by_left: Any  # own: the left ones
    by_right: Any  # own: the right ones


@lru_cache(maxsize=64)
def _translated(term: Term, left: int, right: int) -> _Translated:
    def value(*operands: Tensor) -> tuple[Tensor, ...]:
        return (term(*operands),)

    def derivatives(*operands: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.func.vjp(term, *operands)[1](torch.ones_like(operands[0]))
        return found

    own, other = ([f"{side}[{k}]" for k in range(max(left, right))] for side in ("own", "other"))
    of_left, of_right = own[:left] + other[:right], other[:left] + own[:right]
    return _Translated(
        _function(value, of_left, slice(None)),
        _function(derivatives, of_left, slice(left)),
        _function(derivatives, of_right, slice(left, None)),
    )


def _function(traced: Callable[..., tuple[Tensor, ...]], names: Sequence[str], wanted: slice) -> Any:
    """What is `wanted` of its results, as a function of Triton in which its operands have these names."""
    with torch.inference_mode(False):
        functional = torch.func.functionalize(lambda *operands: traced(*operands)[wanted])
        graph = make_fx(functional)(*torch.ones(len(names), 2)).graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.threshold_backward.default):
        if (result := node.args[1]).target is torch.ops.aten.relu.default:
            node.replace_input_with(result, result.args[0])  # has the same sign, and need not be computed
    graph.eliminate_dead_code()
    written = dict(zip(graph.nodes, names, strict=False))  # operands come first
    lines = []
    for node in graph.nodes:
        if node.op == "output":
            lines.append(f"    return {', '.join(written[one] for one in node.args[0])},\n")
        elif node not in written:
            written[node] = node.name
            lines.append(f"    {node.name} = {_expression(node, written)}\n")
    return _defined(lines)


def _defined(lines: Sequence[str]) -> Any:
    """The function with this body. Triton takes its text from where Python keeps that of files."""
    name = "term_" + hashlib.sha256("".join(lines).encode()).hexdigest()  # Triton tells functions apart by their names
    text = [f"def {name}(own, other):\n", *lines]
    file = f"<{name}>"
    linecache.cache[file] = sum(map(len, text)), None, text, file
    scope: dict[str, Any] = {"tl": tl, "__name__": __name__}
    exec(compile("".join(text), file, "exec"), scope)
    return triton.jit(scope[name])


def _expression(node: fx.Node, written: dict[fx.Node, str]) -> str:
    arguments = [written[one] if isinstance(one, fx.Node) else _literal(one) for one in node.args]
    operation = str(node.target).removeprefix("aten.").split(".")[0]
    options = [name for name, value in node.kwargs.items() if name not in _OF_STORAGE and value != torch.float32]
    try:
        return _EXPRESSIONS[" ".join([operation, *options])](*arguments)
    except KeyError:
        raise UsageError(
            f"a term of pair_sums calls {node.target} with {(*node.args[1:], *node.kwargs)}, for which its kernels have"
            " no expression: write the term without it, or give it one in _EXPRESSIONS of engine/pair_kernels.py"
        ) from None


def _literal(value: object) -> str:
    """Numbers are floats in Triton; None and shapes, which no expression has a place for, stay as they are."""
    return repr(float(value)) if isinstance(value, int | float) else str(value)


_MAXIMUM, _MINIMUM = (f"tl.{name}({{}}, {{}}, tl.PropagateNan.ALL)".format for name in ("maximum", "minimum"))
"""What is no number stays so, as in torch: nobody may take it for a small distance."""


def _clamped(x: str, least: str, most: str = "None") -> str:
    above = x if least == "None" else _MAXIMUM(x, least)
    return above if most == "None" else _MINIMUM(above, most)


_OF_STORAGE = {"device", "layout", "memory_format", "pin_memory"}
_POWERS = {"1.0": "{0}", "2.0": "{0} * {0}", "3.0": "{0} * {0} * {0}"}
_BETWEEN = {"add": "+", "sub": "-", "mul": "*", "div": "/", "logical_and": "&", "logical_or": "|"}
_BETWEEN |= {"eq": "==", "ne": "!=", "ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_EXPRESSIONS: dict[str, Callable[..., str]] = {
    **{name: f"{{}} {sign} {{}}".format for name, sign in _BETWEEN.items()},
    **{name: f"tl.{name}({{}})".format for name in ("abs", "cos", "exp", "log", "rsqrt", "sigmoid", "sin", "sqrt")},
    **dict.fromkeys(("clone", "detach", "expand", "scalar_tensor"), "{}".format),
    "_to_copy": "tl.cast({}, tl.float32)".format,
    **{"ones_like": "1.0".format, "zeros_like": "0.0".format, "neg": "{} * -1.0".format, "rsub": "{1} - {0}".format},
    **{"reciprocal": "1.0 / {}".format, "pow": lambda x, exponent: _POWERS[exponent].format(x)},
    **{"maximum": _MAXIMUM, "minimum": _MINIMUM, "clamp": _clamped, "relu": lambda x: _MAXIMUM(x, "0.0")},
    "threshold_backward": "tl.where({1} <= {2}, 0.0, {0})".format,
    **{"where": "tl.where({}, {}, {})".format, "masked_fill": "tl.where({1}, {2}, {0})".format},
    "logical_not": "{} == 0".format,
    "sigmoid_backward": "{0} * {1} * (1.0 - {1})".format,
    "tanh": "2.0 * tl.sigmoid(2.0 * {}) - 1.0".format,
    "tanh_backward": "{0} * (1.0 - {1} * {1})".format,
    # 2¹²⁷ x is beyond ±1 for all x but zero and the subnormal; two instructions, where comparisons are four.
    "sgn": "tl.clamp({} * 1.7014118346046923e38, -1.0, 1.0)".format,
}
