"""Several processes that train together: what they do is what one does, however many go on, and whoever dies."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from processes import ENVIRONMENT
from query2particles.errors import RunError, UsageError
from query2particles.graph.folders import open_graph
from query2particles.presets import preset
from query2particles.run import Run
from query2particles.tables import settled
from query2particles.train import train

SETTINGS = (
    *("dimension=8", "batch=30", "updates=12", "warm_up=2", "validate_every=6", "validation_queries=3", "dropout=0"),
    *("schedule=constant", "mix=1p:2,2i:1,2in:1", "rate=0.01", "smoothing=0.1", "exclusion=0.5"),
)
TABLES = {
    "softmax over all": ("table=whole", "negatives=0"),
    "rows": ("table=device", "negatives=40"),
}
each_table = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


def launched(count: int, *arguments: str | Path, restarts: int = 0) -> subprocess.Popen[str]:
    together = ("--standalone", f"--nproc-per-node={count}", f"--max-restarts={restarts}", "--local-addr=127.0.0.1")
    command = [sys.executable, "-m", "torch.distributed.run", *together]
    return subprocess.Popen(
        [*command, "-m", "query2particles", "train", *map(str, arguments), "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )


def trained(count: int, *arguments: str | Path) -> None:
    with launched(count, *arguments) as process:
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said


def new(folder: Path, settings: Sequence[str]) -> list[str | Path]:
    spelled = [one for setting in (*SETTINGS, *settings) for one in ("--set", setting)]
    return ["atlas", "--preset", "small", *spelled, "--out", folder]


def course(folder: Path) -> tuple[dict[int, float], dict[int, Any]]:
    """The losses and the validations, by update."""
    lines = Run.open(folder).read_trace()
    losses = {line["update"]: line["loss"] for line in lines if "loss" in line}
    return losses, {line["update"]: line["validation"] for line in lines if "validation" in line}


def alone(folder: Path, settings: Sequence[str], updates: int) -> Path:
    from query2particles.config import configured

    torch.set_num_threads(1)
    config = configured(preset("q2p", "small"), None, [*SETTINGS, *settings, f"updates={updates}"])
    graph = open_graph("atlas")
    train(Run.create(folder, config, graph, "atlas"), graph)
    return folder


def assert_same_course(folder: Path, other: Path, updates: int) -> None:
    """Up to an update."""
    (losses, validations), (expected, validated) = (
        [{update: found for update, found in several.items() if update <= updates} for several in course(one)]
        for one in (folder, other)
    )
    assert max(losses) == updates
    assert losses.keys() == expected.keys()
    assert max(abs(losses[update] - expected[update]) for update in expected) < 1e-5
    assert validations.keys() == validated.keys()
    for update, found in validations.items():
        assert found == pytest.approx(validated[update], abs=1e-2)


def assert_same_weights(folder: Path, other: Path) -> None:
    weights, wanted = (load_file(one / "best.safetensors") for one in (folder, other))
    assert weights.keys() == wanted.keys()
    for name, one in weights.items():
        torch.testing.assert_close(one, wanted[name], rtol=1e-3, atol=1e-4)


ENDING = """
import os, sys, time
from pathlib import Path
from query2particles.distributed import processes

def threads():
    for task in Path("/proc/self/task").iterdir():
        try:
            yield (task / "comm").read_text().strip()
        except OSError:  # it has ended meanwhile
            pass

def left():
    return [name for name in threads() if "gloo" in name]

with processes("cpu") as (group, _):
    from query2particles.shared_checkpoint import SharedCheckpoint  # as training does, when they have met
    import torch.distributed.checkpoint
    group.wait()
    met = left()
end = time.monotonic() + 10  # a thread that was waited for is listed a moment longer
while left() and time.monotonic() < end:
    time.sleep(0.01)
Path(sys.argv[1], os.environ["RANK"]).write_text(f"{bool(met)} {left()}")
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs the threads of a process under /proc")
def test_no_thread_is_left_when_processes_part(tmp_path: Path) -> None:
    """One that ends after Python has is an abort, now and then, of a training that has ended well."""
    (tmp_path / "ending.py").write_text(ENDING)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*command, "--local-addr=127.0.0.1", str(tmp_path / "ending.py"), str(tmp_path)],
        capture_output=True,
        env=ENVIRONMENT,
        timeout=120,
        check=True,
    )
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["True []", "True []"]


@each_table
def test_two_processes_do_what_one_does_and_any_number_goes_on(tmp_path: Path, table: tuple[str, ...]) -> None:
    """Loss for loss, validation for validation; with uneven shards and shares of a batch."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    alone(one, table, updates=24)
    with pytest.raises(RunError, match="was last saved by one process"):
        Run.open(one).restore(None, object())  # type: ignore[arg-type]
    trained(2, *new(two, table))
    assert_same_course(two, one, 12)
    shutil.copytree(two, three)
    trained(3, "--resume", three, "--set", "updates=24")
    run = Run.open(two).with_config(Run.open(three).config)
    train(run, run.graph())
    for folder in (two, three):
        assert_same_course(folder, one, 24)
        assert_same_weights(folder, one)


def children(process: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_a_worker_that_dies_costs_the_steps_since_the_last_checkpoint(tmp_path: Path) -> None:
    run, settings = tmp_path / "run", ("table=device", "negatives=40", "updates=60", "validate_every=60")
    with launched(2, *new(run, (*settings, "checkpoint_every=5")), restarts=1) as process:
        about = run / "last.shards" / "about.json"
        deadline = time.monotonic() + 120
        while not about.exists() or json.loads(about.read_text())["state"]["update"] < 10:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(children(process.pid)[-1], signal.SIGKILL)
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "exitcode: -9" in said
    assert len(re.findall(r"run goes on after update \d+", said)) == 1
    losses, _ = course(run)
    assert list(losses) == list(range(5, 61, 5)), "what was saved was not done again, and nothing is missing"
    expected, _ = course(alone(tmp_path / "alone", (*settings, "checkpoint_every=5"), updates=60))
    assert losses == pytest.approx(expected, abs=1e-4)


def test_no_other_run_is_taken_for_the_one_that_died(tmp_path: Path) -> None:
    """Though torchrun starts the command again when it was refused; the same command goes on with what it has begun."""
    run, settings = tmp_path / "run", ("table=device", "negatives=40", "schedule=constant")
    trained(2, *new(run, settings))
    before = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    with launched(2, *new(run, (*settings, "updates=14")), restarts=1) as process:
        said, _ = process.communicate(timeout=240)
    assert process.returncode != 0, said
    assert said.count(f"error: {run} is not empty: resume it") == 2, "each time by one process alone"
    assert "Connection closed" not in said
    assert {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()} == before
    with launched(2, *new(run, settings)) as process:
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert said.count("was finished after update 12") == 1


@pytest.mark.parametrize(
    ("method", "settings"),
    [("emql", ()), ("cqd-beam", ()), ("q2p", ("table=host", "negatives=9")), ("betae", ("loss=margin", "negatives=0"))],
)
def test_what_several_processes_cannot_share(method: str, settings: tuple[str, ...]) -> None:
    from query2particles.config import configured

    with pytest.raises(UsageError, match="several processes cannot share"):
        settled(configured(preset(method), None, settings), 100, torch.device("cpu"), processes=2)


def test_best_is_for_one_process(tmp_path: Path) -> None:
    start = [sys.executable, "-m", "query2particles", "train"]
    command = [*start, "atlas", "--method", "best", "--out", str(tmp_path / "run")]
    environment = {**ENVIRONMENT, "WORLD_SIZE": "2", "RANK": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "without torchrun" in done.stderr
