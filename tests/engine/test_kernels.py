"""The CUDA kernel of the loss, on any machine: run by Triton's interpreter, and compiled for a GPU that is not there.

This file is also a script, run in a process of its own (`triton_alone`): it prints, as JSON, how far the kernel is from
`engine.loss` in each case.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from engine.triton_alone import needs_triton, run_alone
from query2particles.engine import loss as loss_module
from query2particles.engine.loss import LossTerms, max_softmax, softmax_loss

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
        scores[..., self.entities :] = loss_module._NEVER * self.terms.sign
        return scores.to(TYPES[self.dtype])

    def targets(self) -> tuple[Tensor, Tensor, Tensor]:
        """The last entity, the first one, and one in between; one of them excluded too; a weight of zero."""
        positives = torch.tensor([self.entities - 1, 0, self.entities // 2])
        return positives, positives[[0, 2, 1]], torch.tensor([1.0, 0.0, 0.7])

    def distances(self, device: str = "cpu") -> dict[str, float]:
        """How far the kernel's losses and derivatives are from those of `engine.loss`, as a share of the largest."""
        from query2particles.engine.kernels import rows_in_place

        scores = self.scores().to(device)
        positives, excluded, weights = (one.to(device) for one in self.targets())
        targets = positives, excluded, weights, self.entities
        wanted_losses, wanted = loss_module._rows(scores.to(torch.float32, copy=True), *targets, self.terms)
        losses = rows_in_place(scores, *targets, **self.terms._asdict())
        slopes = scores.float()
        return {
            "losses": float((losses - wanted_losses).abs().max() / wanted_losses.abs().max().clamp(min=1)),
            "slopes": float((slopes - wanted).abs().max() / wanted.abs().max().clamp(min=1e-3)),
            "not zero": float((slopes[wanted == 0] != 0).sum()),
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


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    found: list[dict[str, float]] = run_alone(__file__, "interpret", tmp_path_factory)
    return found


@needs_triton
@pytest.mark.xdist_group("kernels")
@each_case
def test_the_kernel_is_the_loss(interpreted: list[dict[str, float]], number: int) -> None:
    """Losses, derivatives, and zeros where another particle won."""
    distances, tolerance = interpreted[number], TOLERANCE[CASES[number].dtype]
    assert distances["losses"] < TOLERANCE["float32"]  # sums are taken in float32 whatever the scores are
    assert distances["slopes"] < tolerance
    assert distances["not zero"] == 0


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The kernel's assembly for an H200, by width."""
    found: dict[str, str] = run_alone(__file__, "compile", tmp_path_factory)
    return found


@needs_triton
@pytest.mark.xdist_group("kernels")
@pytest.mark.parametrize("width", ["1", "2", "4"])
def test_the_kernel_compiles_for_an_h200(assembled: dict[str, str], width: str) -> None:
    assert ".target sm_90" in assembled[width]


@needs_triton
@pytest.mark.xdist_group("kernels")
@pytest.mark.parametrize("width", ["1", "2", "4"])
def test_scores_are_read_before_others_overwrite_them(assembled: dict[str, str], width: str) -> None:
    """Warps of a program run apart from the last barrier on. From there until derivatives are written over the scores
    no warp may still have to read a score that another one overwrites.
    """
    lines = assembled[width].splitlines()
    last_barrier = max(number for number, line in enumerate(lines) if "bar.sync" in line)
    first_write = min(number for number, line in enumerate(lines) if "st.global.b16" in line)
    loop = max(number for number, line in enumerate(lines[:first_write]) if line.startswith("$L__BB"))
    assert last_barrier < loop
    assert not [line for line in lines[last_barrier:loop] if "ld.global.b16" in line]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_case
def test_the_kernel_is_the_loss_on_a_gpu(number: int) -> None:
    distances, tolerance = CASES[number].distances("cuda"), TOLERANCE[CASES[number].dtype]
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
    particles, table, bias = factors
    scores = particles @ table.T + bias
    rounded = scores + (scores.bfloat16().float() - scores).detach()
    plain = softmax_loss(rounded.max(1).values, positives, excluded, weights, terms)
    on_gpu = particles, table, bias = [factor.detach().cuda().requires_grad_() for factor in factors]
    fused = max_softmax(particles, table, bias, positives.cuda(), excluded.cuda(), weights.cuda(), terms)
    torch.testing.assert_close(fused.cpu(), plain, rtol=1e-2, atol=0)
    wanted = torch.autograd.grad(plain, factors)
    for found, expected in zip(torch.autograd.grad(fused, on_gpu), wanted, strict=True):
        assert float((found.cpu() - expected).norm() / expected.norm()) < 3e-2


def _assembly(width: int) -> str:
    """The kernel as it is compiled for scores in bfloat16 on an H200."""
    import triton
    from triton.backends.compiler import GPUTarget

    from query2particles.engine import kernels

    types = {
        **{"scores": "*bf16", "positives": "*i64", "excluded": "*i64", "weights": "*fp32", "losses": "*fp32"},
        **{"entities": "i32", "columns": "i32", "epsilon": "fp32", "kappa": "fp32", "sign": "fp32"},
        **{"WIDTH": "constexpr", "BLOCK": "constexpr"},
    }
    source = triton.compiler.ASTSource(
        fn=kernels._rows,
        signature={name: types[name] for name in kernels._rows.arg_names},
        constexprs={"WIDTH": width, "BLOCK": kernels._BLOCK},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    assert compiled.asm["cubin"]
    return str(compiled.asm["ptx"])


if __name__ == "__main__":
    if sys.argv[1] == "interpret":
        print(json.dumps([case.distances() for case in CASES]))
    else:
        print(json.dumps({width: _assembly(width) for width in (1, 2, 4)}))
