"""The CUDA kernels of the loss, on any machine: run by Triton's interpreter, and compiled for a GPU that is not there.

This file is also a script, run in a process of its own (`triton_alone`): it prints, as JSON, how far the kernels are
from `engine.fused_loss` in each case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from engine.triton_alone import needs_triton, run_alone
from query2particles.engine import fused_loss
from query2particles.engine.fused_loss import max_sampled_softmax, max_softmax
from query2particles.engine.loss import NEVER, LossTerms, negatives_loss, softmax_loss
from query2particles.engine.negatives import Negatives

TERMS = [LossTerms(*values) for values in product((0.0, 0.3), (0.0, 1.5), (1.0, -1.0))]
SIZES = [(1, 64), (63, 64), (64, 64), (65, 128), (4096, 4096), (4097, 4160), (8300, 8320)]
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = {"float32": 2e-5, "bfloat16": 1e-2}


@dataclass(frozen=True)
class Case:
    """Scores (3, width, columns) of so many entities; whole numbers, so that particles tie, or any."""

    width: int
    entities: int
    columns: int
    dtype: str
    ties: bool
    terms: LossTerms

    def scores(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.columns + self.width)
        shape = 3, self.width, self.columns
        whole = torch.randint(-3, 4, shape, generator=generator).float()
        scores = whole if self.ties else 3 * torch.randn(shape, generator=generator)
        scores[..., self.entities :] = NEVER * self.terms.sign
        return scores.to(TYPES[self.dtype])

    def targets(self) -> tuple[Tensor, Tensor, Tensor]:
        """The last entity, the first one, and one in between; one of them excluded too; a weight of zero."""
        positives = torch.tensor([self.entities - 1, 0, self.entities // 2])
        return positives, positives[[0, 2, 1]], torch.tensor([1.0, 0.0, 0.7])

    def negatives(self) -> tuple[Tensor, Tensor]:
        """Every entity once, from the last on, but of the first query's positive many; what each of them stands for."""
        generator = torch.Generator().manual_seed(self.columns)
        drawn = torch.arange(self.entities).flip(0)
        drawn[1::5] = self.entities - 1
        others, shares = torch.full((self.columns,), -1), torch.zeros(self.columns)
        others[: self.entities] = drawn
        shares[: self.entities] = 7 * torch.rand(self.entities, generator=generator) + 0.01
        return others, shares

    def distances(self, device: str = "cpu") -> dict[str, dict[str, float]]:
        """How far the kernels' losses and derivatives are from those of `engine.fused_loss`, as shares of the largest:
        with these entities as all, and as some.
        """
        from query2particles.engine.kernels import other_rows_in_place, rows_in_place

        positives, excluded, weights = (one.to(device) for one in self.targets())
        over_all = positives, excluded, weights, self.entities
        found, _ = torch.tensor([[2.0, 5.0], [-1.0, 5.0], [30.0, 5.0]], device=device).mul(self.terms.sign).unbind(1)
        others, shares = (one.to(device) for one in self.negatives())
        over_some = found, positives, weights, others, shares, 3 * self.entities, self.terms.smoothing, self.terms.sign
        scores, exact, of_some, exact_of_some = (
            self.scores().to(device, dtype, copy=True) for dtype in 2 * (TYPES[self.dtype], torch.float32)
        )
        wanted = fused_loss._rows(exact, *over_all, self.terms)
        seen = rows_in_place(scores, *over_all, self.terms)
        wanted_of_some = fused_loss._other_rows(exact_of_some, *over_some)
        seen_of_some = other_rows_in_place(of_some, *over_some)
        return {
            "all": _distances([seen], [wanted], scores.float(), exact),
            "some": _distances(seen_of_some, wanted_of_some, of_some.float(), exact_of_some),
        }


def _distances(
    seen: Sequence[Tensor], wanted: Sequence[Tensor], slopes: Tensor, wanted_slopes: Tensor
) -> dict[str, float]:
    far = [
        float((one - other).abs().max() / other.abs().max().clamp(min=1))
        for one, other in zip(seen, wanted, strict=True)
    ]
    return {
        "losses": max(far),
        "slopes": float((slopes - wanted_slopes).abs().max() / wanted_slopes.abs().max().clamp(min=1e-3)),
        "not zero": float((slopes[wanted_slopes == 0] != 0).sum()),
    }


def cases() -> list[Case]:
    """All sizes, widths and types, with the terms in turn, then all terms."""
    turns = enumerate(product(SIZES, (1, 2, 3, 4), TYPES))
    found = [
        Case(width, *size, dtype, bool(number // 2 % 2), TERMS[(number + number // 8) % len(TERMS)])
        for number, (size, width, dtype) in turns
    ]
    return found + [
        Case(2, 100, 128, dtype, ties, terms) for dtype, ties, terms in product(TYPES, (True, False), TERMS)
    ]


CASES = cases()
each_case = pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: str(CASES[number]))
each_kernel = pytest.mark.parametrize("kernel", ["all", "some"])
each_width = pytest.mark.parametrize("width", ["1", "2", "4"])


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, float]]]:
    found: list[dict[str, dict[str, float]]] = run_alone(__file__, "interpret", tmp_path_factory)
    return found


@needs_triton
@pytest.mark.xdist_group("kernels")
@each_kernel
@each_case
def test_the_kernel_is_the_loss(interpreted: list[dict[str, dict[str, float]]], number: int, kernel: str) -> None:
    """Losses, derivatives, and zeros where another particle won."""
    distances, tolerance = interpreted[number][kernel], TOLERANCE[CASES[number].dtype]
    assert distances["losses"] < TOLERANCE["float32"]  # sums are taken in float32 whatever the scores are
    assert distances["slopes"] < tolerance
    assert distances["not zero"] == 0


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The kernels' assembly for an H200, by width."""
    found: dict[str, dict[str, str]] = run_alone(__file__, "compile", tmp_path_factory)
    return found


@needs_triton
@pytest.mark.xdist_group("kernels")
@each_kernel
@each_width
def test_the_kernel_compiles_for_an_h200(assembled: dict[str, dict[str, str]], kernel: str, width: str) -> None:
    assert ".target sm_90" in assembled[kernel][width]


@needs_triton
@pytest.mark.xdist_group("kernels")
@each_kernel
@each_width
def test_scores_are_read_before_others_overwrite_them(
    assembled: dict[str, dict[str, str]], kernel: str, width: str
) -> None:
    """Warps of a program run apart from the last barrier on. From there until derivatives are written over the scores
    no warp may still have to read a score that another one overwrites.
    """
    lines = assembled[kernel][width].splitlines()
    last_barrier = max(number for number, line in enumerate(lines) if "bar.sync" in line)
    first_write = min(number for number, line in enumerate(lines) if "st.global.b16" in line)
    loop = max(number for number, line in enumerate(lines[:first_write]) if line.startswith("$L__BB"))
    assert last_barrier < loop
    assert not [line for line in lines[last_barrier:loop] if "ld.global.b16" in line]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_case
def test_the_kernel_is_the_loss_on_a_gpu(number: int) -> None:
    tolerance = TOLERANCE[CASES[number].dtype]
    for distances in CASES[number].distances("cuda").values():
        assert distances["losses"] < 1e-4
        assert distances["slopes"] < max(tolerance, 1e-4)
        assert distances["not zero"] == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_the_fused_loss_on_a_gpu_is_the_plain_one_on_the_cpu(terms: LossTerms) -> None:
    """Within what bfloat16 rounds away; the best particle is that by rounded scores, lest a near tie goes two ways."""
    generator = torch.Generator().manual_seed(0)
    shapes = (64, 2, 40), (1000, 40), (1000,)
    factors = [(torch.randn(shape, generator=generator) * 0.5).bfloat16().float().requires_grad_() for shape in shapes]
    positives, excluded = torch.randint(1000, (2, 64), generator=generator)
    weights = torch.ones(64)
    drawn = torch.randint(1000, (200,), generator=generator)
    particles, table, bias = factors
    rounded = _rounded_scores(particles, table, bias)
    pairs = rounded.gather(1, torch.stack([positives, excluded], 1))
    of_some = positives != excluded, drawn == positives[:, None], weights
    share = torch.tensor(5.0)
    plain = {
        "all": softmax_loss(rounded, positives, excluded, weights, terms),
        "some": negatives_loss(
            "softmax", pairs, rounded[:, drawn], *of_some, stands_for=share, entities=1000, terms=terms
        ),
    }
    wanted = {name: torch.autograd.grad(one, factors, retain_graph=True) for name, one in plain.items()}
    on_gpu = particles, table, bias = [factor.detach().cuda().requires_grad_() for factor in factors]
    known = positives, excluded, weights = positives.cuda(), excluded.cuda(), weights.cuda()
    drawn, pairs = drawn.cuda(), torch.stack([positives, excluded], 1)
    scores = _rounded_scores(particles, table, bias).gather(1, pairs)
    negatives = Negatives(drawn, share.cuda())
    fused = {
        "all": max_softmax(particles, table, bias, *known, terms),
        "some": max_sampled_softmax(particles, table[drawn], bias[drawn], scores, *known, negatives, 1000, terms),
    }
    for name, one in fused.items():
        torch.testing.assert_close(one.cpu(), plain[name], rtol=1e-2, atol=0)
        for found, expected in zip(torch.autograd.grad(one, on_gpu, retain_graph=True), wanted[name], strict=True):
            assert float((found.cpu() - expected).norm() / expected.norm()) < 3e-2


def _rounded_scores(particles: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """(n, N), of which the slopes are those of what was not rounded."""
    scores = particles @ table.T + bias
    return (scores + (scores.bfloat16().float() - scores).detach()).max(1).values


def _assembly(kernel: str, width: int) -> str:
    """The kernel as it is compiled for scores in bfloat16 on an H200."""
    import triton
    from triton.backends.compiler import GPUTarget

    from query2particles.engine import kernels

    types = {
        **{"scores": "*bf16", "positives": "*i64", "excluded": "*i64", "weights": "*fp32", "losses": "*fp32"},
        **{"entities": "i32", "columns": "i32", "epsilon": "fp32", "kappa": "fp32", "sign": "fp32"},
        **{"found": "*fp32", "others": "*i64", "shares": "*fp32", "by_found": "*fp32", "smooth": "fp32"},
        **{"WIDTH": "constexpr", "BLOCK": "constexpr"},
    }
    function = {"all": kernels._rows, "some": kernels._other_rows}[kernel]
    source = triton.compiler.ASTSource(
        fn=function,
        signature={name: types[name] for name in function.arg_names},
        constexprs={"WIDTH": width, "BLOCK": kernels._BLOCK},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    assert compiled.asm["cubin"]
    return str(compiled.asm["ptx"])


if __name__ == "__main__":
    if sys.argv[1] == "interpret":
        print(json.dumps([case.distances() for case in CASES]))
    else:
        print(
            json.dumps({kernel: {width: _assembly(kernel, width) for width in (1, 2, 4)} for kernel in ("all", "some")})
        )
