"""A model whose weights stay in their file answers as one that loaded them, and takes no memory for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from query2particles.errors import RunError
from query2particles.graph.graph import Graph
from query2particles.graph.vocabulary import Vocabulary
from query2particles.methods.registry import METHODS
from query2particles.run import Run
from query2particles.train import train
from trainings import tiny
from worlds import random_graph

GRAPH = random_graph(3, entities=40, relations=3, facts=400)


@pytest.mark.parametrize("method", METHODS)
def test_mapped_weights_are_the_same(method: str, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", tiny(method, "updates=2", "validate_every=2"), GRAPH, "nowhere")
    train(run, GRAPH)
    loaded, mapped = run.model(GRAPH), run.mapped_model(GRAPH)
    assert not mapped.training
    ids = torch.arange(5)
    relations = torch.arange(5)
    with torch.inference_mode():
        scores = [model.score(model.project(model.anchor(ids), relations, hop=0)) for model in (loaded, mapped)]
    assert torch.equal(*(torch.as_tensor(one) for one in scores))


def test_weights_of_another_form_are_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", tiny("q2p", "updates=1"), GRAPH, "nowhere")
    train(run, GRAPH)
    other = Run.create(tmp_path / "other", tiny("q2p", "dimension=4"), GRAPH, "nowhere")
    (other.folder / "best.safetensors").write_bytes((run.folder / "best.safetensors").read_bytes())
    with pytest.raises(RunError, match="do not fit"):
        other.mapped_model(GRAPH)


def test_a_large_table_is_not_loaded(tmp_path: Path) -> None:
    """All 200 MB of a table are looked at, and none of them is the process's own memory."""
    entities, dimension = 50_000, 1024
    heads = torch.arange(1000).numpy()
    graph = Graph.of(
        Vocabulary.of([f"e{number}" for number in range(entities)]),
        Vocabulary.of(["r"]),
        {"train": (heads, 0 * heads, heads + 1)},
        {"name": "large"},
    )
    graph.save(tmp_path / "graph")
    run = Run.create(tmp_path / "run", tiny("q2p", f"dimension={dimension}"), graph, str(tmp_path / "graph"))
    from query2particles.checkpoint import State
    from query2particles.config import build

    run.save_best(build(run.config, graph), State())
    script = f"""
from pathlib import Path
import torch
from query2particles.engine.table import Table
from query2particles.run import Run
def memory(kind):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) / 1024
run = Run.open(Path({str(run.folder)!r}))
graph = run.graph()
Table(torch.ones(9, 4), torch.ones(9)).best(torch.ones(1, 2, 4), 3)  # what torch takes for itself
before, all_before = memory("RssAnon"), memory("VmRSS")
table = Table.of(run.mapped_model(graph))
table.best(torch.ones(1, 2, {dimension}), 3)
print(memory("RssAnon") - before, memory("VmRSS") - all_before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    own, everything = map(float, done.stdout.split())
    assert own < 130
    assert everything > 195
