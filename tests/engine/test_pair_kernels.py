"""The CUDA kernels of sums over pairs, on any machine: by Triton's interpreter, and compiled for a GPU not there.

This file is also a script, run in a process of its own (`triton_alone`): it prints, as JSON, how far sums and gradients
are from the plain formula in each case, or what the kernels were compiled to.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from engine.test_pairs import box, smooth
from engine.triton_alone import needs_triton, run_alone
from query2particles.engine.captured import Captured
from query2particles.engine.pairs import _absolute_difference, pair_sums
from query2particles.errors import UsageError
from query2particles.methods import cone, links, q2b

Term = Callable[..., Tensor]


def curved(x: Tensor, y: Tensor) -> Tensor:
    """What the others have not: functions with a slope everywhere."""
    flat = torch.sigmoid(x * y) + (x.square() + 1).rsqrt() + (y.abs() + 2).log() - (2 - x.cos()).reciprocal()
    return flat + (y / 4) ** 3 + x.detach() * y.clone()


def chosen(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """What the others have not: conditions and corners; z has no slope at all."""
    far = torch.logical_or(x > y, torch.logical_not(x >= -y)).logical_and(x != z)
    inner = torch.where(far, torch.maximum(x, y), x.clamp(-1, 2) + y.clamp(max=1))
    return torch.where(torch.logical_or(x == y, x <= 2 * y), inner, x.masked_fill(y < 1, 0.5) * y.sgn())


TERMS: dict[str, tuple[Term, int, int]] = {
    "boxes": (box, 2, 1),
    "smooth": (smooth, 2, 2),
    "curved": (curved, 1, 1),
    "chosen": (chosen, 1, 2),
    "difference": (torch.sub, 1, 1),
    "absolute difference": (_absolute_difference, 1, 1),
    "squared difference": (links._squared_difference, 1, 1),
    "Query2Box": (q2b._distance(0.02), 2, 1),
    "ConE": (cone._distance(0.02), 4, 2),
    "RotatE": (links._modulus, 2, 2),
    "RotatE's relations": (links._modulus_after_turn, 4, 2),
}
"""Each with how many tensors of queries and how many of entities it takes."""
PAPERS = ["Query2Box", "ConE", "RotatE", "RotatE's relations"]


@dataclass(frozen=True)
class Case:
    """Operands of a term; whole numbers, so that corners are met, or any."""

    term: str
    n: int
    m: int
    d: int
    whole: bool = False

    def operands(self) -> list[Tensor]:
        """Some contiguous, some the transpose of what is, some with gaps, some with one row for all."""
        _, left, right = TERMS[self.term]
        generator = torch.Generator().manual_seed(self.n + self.m + self.d)
        found = []
        for number, rows in enumerate([self.n] * left + [self.m] * right):
            shape = rows, self.d
            some = torch.randint(-3, 4, shape, generator=generator).float()
            some = some if self.whole else torch.randn(shape, generator=generator)
            forms = some, some.T.contiguous().T, torch.stack([some, some], -1)[..., 0], some[:1].expand(shape)
            found.append(forms[(number + self.d) % len(forms)] if rows else some)
        return found

    def distances(self, device: str = "cpu") -> list[float]:
        """How far sums and gradients are from the plain formula's, as a share of the largest."""
        term, left, _ = TERMS[self.term]
        exact = [one.double().requires_grad_() for one in self.operands()]
        wanted = with_gradients(term(*(one[:, None] for one in exact[:left]), *exact[left:]).sum(-1), exact)
        operands = [one.to(device).requires_grad_() for one in self.operands()]
        found = with_gradients(pair_sums(term, operands[:left], operands[left:]), operands)
        assert [(one.shape, one.dtype) for one in found] == [(one.shape, torch.float32) for one in wanted]
        return [
            float((one.double().cpu() - other).abs().max() / other.abs().max().clamp(min=1)) if one.numel() else 0.0
            for one, other in zip(found, wanted, strict=True)
        ]


def with_gradients(sums: Tensor, operands: list[Tensor]) -> list[Tensor]:
    """Of a weighted sum, so that no pair stands for another."""
    weights = torch.linspace(-1, 2, sums.numel(), dtype=sums.dtype, device=sums.device).view(sums.shape)
    return [sums.detach(), *torch.autograd.grad((weights * sums).sum(), operands, materialize_grads=True)]


EDGES = [(1, 1, 1), (31, 33, 2), (32, 31, 1), (63, 64, 1), (64, 65, 2), (65, 63, 1), (2, 130, 1), (129, 1, 2)]
"""Around whole tiles of rows and of pairs, and parts of the other side's rows."""
CASES = [
    *(Case(name, 5, 67, 2, whole=False) for name in TERMS),
    *(Case(name, 7, 3, 33, whole=True) for name in TERMS),
    *(Case(name, *sizes) for name in ("Query2Box", "ConE") for sizes in EDGES),
    *(Case("boxes", 3, 2, d) for d in (31, 32, 64, 65)),
    *(Case("boxes", *sizes) for sizes in ((0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 0))),
]
each_case = pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: str(CASES[number]))
NOT_KNOWN: dict[str, tuple[Term, str]] = {
    "a function": (lambda x, y: torch.erf(x - y), "aten.erf"),
    "a type": (lambda x, y: (x - y).double().float(), "aten._to_copy"),
    "an option": (lambda x, y: torch.add(x, y, alpha=2), "alpha"),
    "a power": (lambda x, y: (x - y) ** 2.5, "aten.pow"),
    "not elementwise": (lambda x, y: (x - y).sum(-1, keepdim=True) + x, "aten.sum"),
    "a tensor": (lambda x, y: (x - y) * torch.tensor([1.0, 2.0]), "constant"),
}


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Tensors of the CPU go the way of CUDA, which ends in the interpreter, or the compiler."""
    from query2particles.engine.pair_kernels import _translated

    for of_term in TERMS.values():  # done before torch, too, takes them for tensors of CUDA
        _translated(*of_term)
    with patch.object(torch.Tensor, "is_cuda", True):
        yield


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = run_alone(__file__, "interpret", tmp_path_factory)
    return found


@needs_triton
@pytest.mark.xdist_group("pair kernels")
@each_case
def test_sums_and_gradients_are_those_of_the_plain_formula(interpreted: dict[str, Any], number: int) -> None:
    """Also where a term has corners: whole numbers meet them."""
    assert max(interpreted["distances"][number]) < 2e-6


@needs_triton
@pytest.mark.xdist_group("pair kernels")
def test_what_is_no_number_stays_so(interpreted: dict[str, Any]) -> None:
    """For the queries and entities that have it, and for no others."""
    for lost in interpreted["lost"].values():
        assert lost == [[True, True, True], [True, False, False]]


@needs_triton
@pytest.mark.xdist_group("pair kernels")
def test_every_expression_was_tried(interpreted: dict[str, Any]) -> None:
    assert interpreted["untried"] == []


@needs_triton
@pytest.mark.xdist_group("pair kernels")
def test_other_types_are_computed_in_float32(interpreted: dict[str, Any]) -> None:
    """Sums have the type of the first operand, gradients each its own."""
    assert interpreted["types"] == ["float64", "float64", "bfloat16", "float32"]


@needs_triton
@pytest.mark.xdist_group("pair kernels")
def test_only_sides_that_need_gradients_take_them(interpreted: dict[str, Any]) -> None:
    assert interpreted["sides"] == {"both": 2, "queries": 1, "entities": 1, "none": 0}


@needs_triton
@pytest.mark.parametrize("name", NOT_KNOWN)
def test_an_operation_without_an_expression(name: str) -> None:
    from query2particles.engine.pair_kernels import _translated

    term, named = NOT_KNOWN[name]
    with pytest.raises(UsageError, match=named):
        _translated(term, 1, 1)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """Assembly and use of resources of the three kernels of each term on an H200, each started for two sizes."""
    found: dict[str, list[dict[str, str]]] = run_alone(__file__, "compile", tmp_path_factory)
    return found


@needs_triton
@pytest.mark.xdist_group("pair kernels")
@pytest.mark.parametrize("name", PAPERS)
def test_kernels_compile_for_an_h200(compiled: dict[str, list[dict[str, str]]], name: str) -> None:
    """Operands are read four at a time, without shared memory, barriers or registers that do not suffice; three
    programs of 128 threads fit on a multiprocessor with its 65,536 registers.
    """
    for kernel in compiled[name]:
        assert ".target sm_90" in kernel["ptx"]
        assert re.search(r"ld\.global\S*\.v4", kernel["ptx"])
        assert "bar.sync" not in kernel["ptx"]
        usage = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", kernel["resources"])}
        assert usage["STACK"] == usage["LOCAL"] == usage["SHARED"] == 0, kernel["resources"]
        assert usage["REG"] <= 168, kernel["resources"]


@needs_triton
@pytest.mark.xdist_group("pair kernels")
def test_a_term_is_compiled_once_whatever_the_sizes(compiled: dict[str, list[dict[str, str]]]) -> None:
    """For sums, for gradients by queries and for those by entities; no two terms share a kernel."""
    hashes = {name: [kernel["hash"] for kernel in kernels] for name, kernels in compiled.items()}
    for small_and_large in hashes.values():
        assert small_and_large[:3] == small_and_large[3:]
    assert len({one for some in hashes.values() for one in some}) == 3 * len(PAPERS)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
@each_case
def test_sums_and_gradients_on_a_gpu(number: int) -> None:
    assert max(CASES[number].distances("cuda")) < 1e-5


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", TERMS)
def test_many_pairs_on_a_gpu(name: str) -> None:
    """Of whole numbers: a corner that rounding moves would count as a difference."""
    assert max(Case(name, 200, 300, 100, whole=True).distances("cuda")) < 1e-4


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", ["Query2Box", "ConE"])
def test_a_captured_graph_computes_what_its_operands_have_become(name: str) -> None:
    """And twice the same, bit by bit."""
    term, left, _ = TERMS[name]
    operands = [one.contiguous().cuda().requires_grad_() for one in Case(name, 130, 200, 40).operands()]
    results = [torch.empty_like(one) for one in work_on(term, left, operands)]

    def work() -> None:
        for place, one in zip(results, work_on(term, left, operands), strict=True):
            place.copy_(one)

    captured = Captured(work)
    for _ in range(5):
        with torch.no_grad():
            for one in operands:
                one.mul_(0.9)
        captured()
        for found, wanted in zip(results, work_on(term, left, operands), strict=True):
            assert torch.equal(found, wanted)


def work_on(term: Term, left: int, operands: list[Tensor]) -> list[Tensor]:
    return with_gradients(pair_sums(term, operands[:left], operands[left:]), operands)


def _interpret() -> dict[str, Any]:
    from query2particles.engine import pair_kernels

    tried: set[str] = set()

    class Noting(dict[str, Callable[..., str]]):
        def __getitem__(self, name: str) -> Callable[..., str]:
            tried.add(name)
            return super().__getitem__(name)

    with patch.object(pair_kernels, "_EXPRESSIONS", Noting(pair_kernels._EXPRESSIONS)), as_on_cuda():
        distances = [case.distances() for case in CASES]
        types = [torch.float64, torch.bfloat16, torch.float32]
        operands = [torch.ones(2, 3, dtype=dtype, requires_grad=True) for dtype in types]
        of_types = with_gradients(pair_sums(box, operands[:2], operands[2:]), operands)
        lost = {}
        for name in PAPERS:
            term, left, right = TERMS[name]
            broken = [torch.ones(2 if number < left else 3, 2) for number in range(left + right)]
            broken[0][0, 0] = broken[left][0, 1] = torch.nan
            lost[name] = pair_sums(term, broken[:left], broken[left:]).isnan().tolist()
    sides = {}
    needs = {"both": (True, True), "queries": (True, False), "entities": (False, True), "none": (False, False)}
    for name, (left, right) in needs.items():
        operands = [torch.ones(2, 3, requires_grad=left), torch.ones(4, 3, requires_grad=right)]
        with as_on_cuda(), patch.object(pair_kernels, "_slopes_of", wraps=pair_kernels._slopes_of) as taken:
            sums = pair_sums(torch.sub, operands[:1], operands[1:])
            if left or right:
                sums.sum().backward()  # type: ignore[no-untyped-call]
            sides[name] = taken.call_count
    return {
        "distances": distances,
        "lost": lost,
        "untried": sorted(pair_kernels._EXPRESSIONS.keys() - tried),
        "types": [str(one.dtype).removeprefix("torch.") for one in of_types],
        "sides": sides,
    }


def _compile() -> dict[str, list[dict[str, str]]]:
    """What a launch would start, were there an H200: everything is done but for the launch itself."""
    import triton
    from triton.backends.compiler import GPUTarget

    h200 = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    triton.runtime.driver.set_active(h200)
    started: list[Any] = []

    def start(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *operands, **options: started.append(kernel.warmup(*operands, grid=grid, **options))

    found = {}
    with as_on_cuda(), patch.object(triton.runtime.JITFunction, "__getitem__", start):
        for name in PAPERS:
            started.clear()
            term, left, _ = TERMS[name]
            for sizes in ((2, 3, 1), (200, 144, 48)):
                work_on(term, left, [one.requires_grad_() for one in Case(name, *sizes).operands()])
            found[name] = [
                {"hash": one.hash, "ptx": one.asm["ptx"], "resources": _resources(one.asm["cubin"])} for one in started
            ]
    return found


def _resources(cubin: bytes) -> str:
    """Registers and memory of a compiled kernel, as NVIDIA's tool prints them, which comes with Triton."""
    from tempfile import NamedTemporaryFile

    from triton import knobs

    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    print(json.dumps(_interpret() if sys.argv[1] == "interpret" else _compile()))
