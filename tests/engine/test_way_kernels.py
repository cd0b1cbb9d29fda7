"""The CUDA kernels of tree search, on any machine: by Triton's interpreter, and compiled for a GPU that is not there.

This file is also a script, run in a process of its own (`triton_alone`): it prints, as JSON, how far the kernels are
from the plain formulas in each case, or what they were compiled to.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from engine.triton_alone import needs_triton, run_alone
from formulas import ENTITIES, STORED_RELATIONS
from methods.test_tree import tree
from query2particles.methods import tree as tree_module
from query2particles.methods.tree import WAYS
from query2particles.methods.truth import FALSE, NORMS

MOST = -0.01
SIZES = [(1,), (1, 1, 3), (2, 5, 300)]
COLUMNS = [1, 1023, 1024, 2500]
SHARES = [0.0, 0.02]


@dataclass(frozen=True)
class Case:
    """Scores of links of queries with so many followed entities each, some of them ruled out."""

    sizes: tuple[int, ...]
    columns: int
    share: float
    of_all: bool

    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scores in rows with a gap behind each, shifts and logarithms of truths, of which one is none."""
        generator = torch.Generator().manual_seed(self.columns + sum(self.sizes))
        rows = sum(self.sizes)
        scores = (6 * torch.randn(rows, self.columns + 3, generator=generator))[:, : self.columns]
        scores[torch.rand(scores.shape, generator=generator) < self.share] = FALSE
        shifts = torch.randn(rows, generator=generator) - 8
        x = -torch.rand(rows, generator=generator) * torch.tensor([0.0, 1e-6, 1.0, 20.0]).repeat(rows)[:rows]
        if rows > 2:
            x[-1] = FALSE
        return scores, shifts, x

    def distance(self, device: str = "cpu") -> float:
        """How far the kernel's truths are from the formula's, as a share of each; e⁻⁸⁰ is as good as false."""
        from query2particles.engine.way_kernels import joined_ways

        scores, shifts, x = self.operands()
        links = (scores.double() + shifts[:, None]).clamp(max=MOST)
        several = torch.split(x.double()[:, None] + links, list(self.sizes))
        join = NORMS["product"].any_of if self.of_all else lambda truths: truths.amax(0)
        wanted = torch.stack([one[0] if len(one) == 1 else join(one) for one in several])
        starts = torch.tensor([0, *self.sizes]).cumsum(0)
        wide = torch.zeros(len(scores), self.columns + 3, device=device)
        wide[:, : self.columns] = scores
        operands = wide[:, : self.columns], shifts.to(device), MOST, x.to(device), starts.to(device)
        found = joined_ways(*operands, of_all=self.of_all).cpu().double()
        return float((found.clamp(min=-80) - wanted.clamp(min=-80)).abs().max())


def totals_off(columns: int, device: str = "cpu") -> float:
    """How far sums of rows of so many scores are from the formula's, as a share of each; one score leads by far."""
    from query2particles.engine.way_kernels import log_totals

    wide = 6 * torch.randn(5, columns + 3, generator=torch.Generator().manual_seed(columns))
    wide[1, columns // 2] = 90.0
    wide[2] -= 200.0
    wanted = wide[:, :columns].double().logsumexp(1)
    return float((log_totals(wide.to(device)[:, :columns]).cpu() - wanted).abs().max())


CASES = [Case(*values) for values in product(SIZES, COLUMNS, SHARES, (False, True))]
each_case = pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: str(CASES[number]))


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = run_alone(__file__, "interpret", tmp_path_factory)
    return found


@needs_triton
@pytest.mark.xdist_group("kernels")
@each_case
def test_the_kernel_is_the_formula(interpreted: dict[str, Any], number: int) -> None:
    assert interpreted["distances"][number] < 2e-5


@needs_triton
@pytest.mark.xdist_group("kernels")
@pytest.mark.parametrize("place", range(len(COLUMNS)))
def test_sums_are_those_of_the_formula(interpreted: dict[str, Any], place: int) -> None:
    assert interpreted["totals"][place] < 5e-5


@needs_triton
@pytest.mark.xdist_group("kernels")
def test_what_is_no_number_stays_so(interpreted: dict[str, Any]) -> None:
    assert interpreted["lost"] == [[False, False, True, False]] * 2


@needs_triton
@pytest.mark.xdist_group("kernels")
def test_a_search_by_the_kernel_finds_the_same(interpreted: dict[str, Any]) -> None:
    assert interpreted["calls"] > 0
    assert interpreted["search"] < 2e-5


@needs_triton
@pytest.mark.xdist_group("kernels")
def test_kernels_compile_for_an_h200(tmp_path_factory: pytest.TempPathFactory) -> None:
    for assembly in run_alone(__file__, "compile", tmp_path_factory):
        assert ".target sm_90" in assembly


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_case
def test_the_kernel_is_the_formula_on_a_gpu(number: int) -> None:
    assert CASES[number].distance("cuda") < 2e-5


def _lost(of_all: bool) -> list[bool]:
    """Where a score is no number, of whatever row: whether what comes of each column is none either."""
    from query2particles.engine.way_kernels import joined_ways

    scores = torch.zeros(3, 4)
    scores[1, 2] = torch.nan
    found = joined_ways(scores, torch.full((3,), -5.0), MOST, torch.zeros(3), torch.tensor([0, 3]), of_all=of_all)
    return found[0].isnan().tolist()


def _search() -> tuple[float, int]:
    """How far truths after two hops, both ways, are from those without the kernel, and how often it was called."""
    from query2particles.engine import way_kernels

    model = tree(least=0.3, walks=0.4, threshold=0.05).float()
    entities, *relations = torch.randint(0, ENTITIES, (3, 40), generator=torch.Generator().manual_seed(0))

    def found() -> Tensor:
        sets = model.projected(model.anchor(entities), relations[0] % (2 * STORED_RELATIONS), WAYS)
        return model.projected(sets, relations[1] % (2 * STORED_RELATIONS), WAYS).exp()

    with torch.no_grad(), patch.object(way_kernels, "joined_ways", wraps=way_kernels.joined_ways) as called:
        wanted = found()
        with patch.object(tree_module, "_FUSED_ON", {"cpu"}):
            return float((found() - wanted).abs().max()), called.call_count


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("columns", COLUMNS)
def test_sums_are_those_of_the_formula_on_a_gpu(columns: int) -> None:
    assert totals_off(columns, "cuda") < 5e-5


def _assembly(kernel: str, **constants: Any) -> str:
    import triton
    from triton.backends.compiler import GPUTarget

    from query2particles.engine import way_kernels

    function = getattr(way_kernels, kernel)
    types = {
        **dict.fromkeys(("scores", "shifts", "x", "found"), "*fp32"),
        **{"starts": "*i64", "stride": "i32", "columns": "i32", "most": "fp32"},
        **dict.fromkeys(constants, "constexpr"),
    }
    source = triton.compiler.ASTSource(
        fn=function, signature={name: types[name] for name in function.arg_names}, constexprs=constants
    )
    options = {"num_warps": way_kernels._WARPS}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert compiled.asm["cubin"]
    return str(compiled.asm["ptx"])


if __name__ == "__main__":
    if sys.argv[1] == "interpret":
        search, calls = _search()
        distances = [case.distance() for case in CASES]
        totals = [totals_off(columns) for columns in COLUMNS]
        lost = [_lost(of_all) for of_all in (False, True)]
        found = {"distances": distances, "totals": totals, "lost": lost, "search": search, "calls": calls}
        print(json.dumps(found))
    else:
        joined = [_assembly("_joined", OF_ALL=of_all, BLOCK=1024) for of_all in (False, True)]
        print(json.dumps([*joined, _assembly("_log_totals", BLOCK=1024)]))
