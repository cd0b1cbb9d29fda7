"""The house stays liveable: imports go down, the public surface is what it says, start-up is cheap."""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import query2particles

SOURCE = Path(query2particles.__file__).parent
FLOORS = [
    {"errors", "wording"},
    {"files"},
    {"provenance"},
    {"graph"},
    {"query"},
    {"distributed"},
    {"engine"},
    {"methods"},
    {"workload"},
    {"evaluate"},
    {"verdict"},
    {"config"},
    {"presets"},
    {"checkpoint", "curriculum", "tables"},
    {"shared_checkpoint"},
    {"run"},
    {"joining"},
    {"joined"},
    {"experiments"},
    {"plain", "plot"},
    {"ranking"},
    {"calibration"},
    {"index", "cluster"},
    {"searched"},
    {"evidence"},
    {"assignments", "discover", "export"},
    {"spread", "answer", "endings"},
    {"score", "train"},
    {"planning"},
    {"training"},
    {"tune", "reproduce", "bench", "report", "demo"},
    {"serve"},
    {"show"},
    {"answering"},
    {"cli", "__init__", "__main__"},
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


def room_of(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


def imported_rooms(tree: ast.AST) -> set[str]:
    rooms = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "query2particles" and len(parts) > 1:
                rooms.add(parts[1] if parts[1] in FLOOR_OF else "__init__")
    return rooms


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_only_go_down(module: Path) -> None:
    room = room_of(module)
    assert room in FLOOR_OF, f"{room} has no floor: give it one in FLOORS"
    if room in ("__init__", "__main__"):
        return
    for other in imported_rooms(ast.parse((SOURCE / module).read_text("utf-8"))) - {room}:
        allowed = FLOOR_OF[other] < FLOOR_OF[room] or (room, other) in {("cli", "__init__")}
        allowed |= (module.as_posix(), other) == ("graph/graph.py", "query")  # graph["name"] begins a question
        if other == "__init__":  # `from query2particles import __version__`
            allowed = room in ("cli", "bench", "run", "joined", "serve")
        assert allowed, f"{module} imports {other}, which is not below {room}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.parts[0] in ("graph", "query")], ids=str)
def test_no_torch_on_the_symbolic_floors(module: Path) -> None:
    for node in ast.walk(ast.parse((SOURCE / module).read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not any(name.split(".")[0] == "torch" for name in names)


def test_the_public_names_are_there() -> None:
    assert sorted(query2particles.__all__) == list(query2particles.__all__)
    for name in query2particles.__all__:
        assert getattr(query2particles, name) is not None
    with pytest.raises(AttributeError):
        query2particles.nothing_of_that_name  # noqa: B018


def test_every_module_names_its_exports() -> None:
    for module in MODULES:
        if module.name in ("__init__.py", "__main__.py") and module.parent != Path():
            continue
        if module.name == "__main__.py":
            continue
        assert "__all__" in (SOURCE / module).read_text("utf-8"), f"{module} has no __all__"


def test_help_answers_at_once() -> None:
    """Under half a second of work (not of waiting for other tests), the best of three: heavy imports are late."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-m", "query2particles", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert b"demo" in done.stdout
    assert min(seconds) < 0.5


def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = {"numpy", "scipy", "torch", "lark", "pyarrow", "rdflib"}
    script = f"import sys, query2particles.cli; print(*({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "exact", "--count", "10"),
        ("bench", "sample", "--count", "10"),
        ("bench", "train", "--device", "cpu", "--set", "dimension=16", "--set", "batch=64"),
        ("bench", "evaluate", "--device", "cpu", "--set", "dimension=16", "--count", "10"),
        ("bench", "answer", "--device", "cpu", "--set", "dimension=16", "--count", "10"),
        ("reproduce", "--list"),
        ("tune", "atlas", "--out", "search", "--preset", "small", "--trials", "1", "--set", "updates=1"),
        ("sample", "atlas", "--shapes", "2p,2in", "--count", "5", "--out", "queries"),
        ("graph", "info", "atlas"),
    ],
    ids=" ".join,
)
def test_a_machine_that_measures_needs_little(command: tuple[str, ...], tmp_path: Path) -> None:
    """Where parsers, readers of files and plots are not installed, what needs none of them runs."""
    absent = ("lark", "rdflib", "pyoxigraph", "pyarrow", "matplotlib", "fastapi", "faiss")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({absent})); sys.argv = ['q2p', *{command}]; "
        "from query2particles.cli import main; main()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "Q2P_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
