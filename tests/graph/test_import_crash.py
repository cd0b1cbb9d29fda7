"""A killed import leaves the old graph or the new one, never a mixture."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from query2particles.graph.graph import Graph
from query2particles.graph.load import import_graph

IMPORT = """
import sys
from pathlib import Path
from query2particles.graph.load import import_graph
graph = import_graph([Path(sys.argv[1])])
print("saving", flush=True)
graph.save(Path(sys.argv[2]))
print("saved", flush=True)
"""


def synthetic(path: Path, seed: int) -> Path:
    """Enough facts for the writing to take a while."""
    generator = np.random.default_rng(seed)
    heads, relations, tails = (generator.integers(size, size=150_000).tolist() for size in (40_000, 20, 40_000))
    rows = zip(heads, relations, tails, strict=True)
    path.write_text("".join(f"{seed}-{head}\tr{relation}\t{seed}-{tail}\n" for head, relation, tail in rows))
    return path


def content(folder: Path) -> str:
    """A digest of every file of a graph folder, which must also open and agree with its own manifest."""
    graph = Graph.open(folder)
    manifest = json.loads((folder / "graph.json").read_text())
    assert manifest["facts"] == graph.facts()
    assert manifest["fingerprint"] == graph.fingerprint
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def start(source: Path, target: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", IMPORT, str(source), str(target)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_import_leaves_the_old_graph_or_the_new_one(tmp_path: Path) -> None:
    generator = random.Random(0)
    sources = [synthetic(tmp_path / f"source-{seed}.tsv", seed) for seed in (1, 2)]
    place = tmp_path / "place"
    target = place / "graph"
    contents = []
    for source in sources:
        import_graph([source]).save(tmp_path / "reference")
        contents.append(content(tmp_path / "reference"))
    assert contents[0] != contents[1]

    began = time.monotonic()
    with start(sources[0], target) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saving\n"
        reading = time.monotonic() - began
        assert process.stdout.readline() == "saved\n"
        writing = time.monotonic() - began - reading
    assert content(target) == contents[0]

    seen = set()
    for attempt in range(20):
        source = sources[contents.index(content(target)) - 1]  # the one that is not there
        with start(source, target) as process:
            assert process.stdout is not None
            if attempt % 4 == 0:
                time.sleep(generator.uniform(0, reading))
            else:
                process.stdout.readline()
                # Later and later: on a busy machine what was measured above may have been too short.
                time.sleep(generator.uniform(0, (1 + attempt / 5) * writing))
            process.kill()
        found = content(target)
        assert found in contents
        seen.add(found)
    assert seen == set(contents), "no kill came after the exchange: the moments are badly chosen"

    with start(sources[0], target) as process:
        process.communicate()
    assert process.returncode == 0
    assert content(target) == contents[0]
    assert [path.name for path in place.iterdir()] == ["graph"]
