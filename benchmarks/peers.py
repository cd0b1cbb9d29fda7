"""Our link prediction beside that of other packages, on the same facts for the same minutes.

    python -m venv peers && peers/bin/pip install torch==2.13.0 pykeen dicee 'pyarrow<23'
    python benchmarks/peers.py GRAPH --peers-python peers/bin/python --minutes 5 --out benchmarks/results

GRAPH is a graph folder with validation and test facts. One system after the other is trained on its training facts, and
asked for the tails and heads of its test facts; `benchmarks/fact_ranks.py` judges them all. Minutes are wall-clock
time: of the other packages from the first update to the last, of ours as `q2p train --minutes` has it. `--split valid`
judges by validation facts instead: so were the settings of the others chosen, which `--set` changes.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fact_ranks import Ints, count, directed, figures

from query2particles import __version__
from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.ranks import scoring
from query2particles.errors import Query2ParticlesError, UsageError
from query2particles.files import check_writable, write_json
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph, Split, smaller
from query2particles.joined import open_run
from query2particles.provenance import commit, machine
from query2particles.query.algebra import SHAPES

OURS = "query2particles"

PEERS: Mapping[str, Mapping[str, Any]] = {
    "pykeen": {
        "dimension": 100,
        "deviation": 0.001,
        "n3": 0.0,
        "negatives": 0,
        "optimizer": "Adagrad",
        "lr": 0.3,
        "batch": 128,
    },
    "dicee": {
        "model": "ComplEx",
        "embedding_dim": 128,
        "scoring_technique": "KvsAll",
        "optim": "Adam",
        "lr": 0.01,
        "batch_size": 128,
        "init_param": "xavier_normal",
        "normalization": "LayerNorm",
        "input_dropout_rate": 0.3,
    },
}
"""The settings of the others: the best of some that were tried for two minutes each, by validation facts."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare link prediction with other packages.")
    parser.add_argument("graph", help="a graph folder with validation and test facts")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the result, peers-GRAPH.json")
    parser.add_argument("--peers-python", type=Path, help="the interpreter that has the other packages")
    parser.add_argument("--systems", default=",".join([OURS, *PEERS]), help="which, by commas (default: all)")
    parser.add_argument("--minutes", type=float, default=5.0, help="of training, for each (default: 5)")
    parser.add_argument(
        "--ours",
        default="train {graph} --minutes {minutes} --seed {seed} --out {run}",
        help="words after `q2p` that train our run (default: %(default)s); or a run folder that is there already",
    )
    parser.add_argument("--set", action="append", default=[], metavar="SYSTEM.KEY=VALUE", help="another setting")
    parser.add_argument("--split", choices=("valid", "test"), default="test", help="which facts to judge by")
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    try:
        compare(told)
    except Query2ParticlesError as error:
        sys.exit(f"error: {error}")


def compare(told: argparse.Namespace) -> None:
    """Train and judge each system, and write down what came out after each."""
    systems = told.systems.split(",")
    if unknown := set(systems) - {OURS, *PEERS}:
        raise UsageError(f"there is no system {', '.join(sorted(unknown))}: name some of {', '.join([OURS, *PEERS])}")
    if told.peers_python is None and set(systems) & PEERS.keys():
        raise UsageError("name the interpreter that has the other packages: --peers-python PATH")
    settings = _settings(told.set)
    graph = open_graph(told.graph)
    train, known = (_facts(graph, split) for split in ("train", "test"))
    facts = _own_facts(graph, told.split)
    if not len(facts):
        raise UsageError(f"{graph.name} has no {told.split} facts; import it with some held out (--split)")
    target = told.out / f"peers-{graph.name}.json"
    check_writable(target)
    document: dict[str, Any] = {
        "name": target.stem,
        "graph": graph.name,
        "entities": len(graph.entities),
        "relations": len(graph.relations),
        "facts": graph.facts(),
        "judged": told.split,
        "minutes": told.minutes,
        "seed": told.seed,
        "version": __version__,
        "commit": commit(),
        "machine": machine(),
        "systems": {},
    }
    for system in systems:
        print(f"{system}: {told.minutes:g} minutes", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            if system == OURS:
                found = _ours(told, Path(folder), graph, facts, known)
            else:
                job = {
                    "settings": settings[system],
                    "minutes": told.minutes,
                    "seed": told.seed,
                    "entities": len(graph.entities),
                    "relations": len(graph.relations),
                }
                np.savez(Path(folder) / "facts.npz", train=train, facts=facts, known=known)
                found = _peer(told.peers_python, system, Path(folder), job)
        document["systems"][system] = found
        print(f"{system}: {json.dumps(found)}", file=sys.stderr, flush=True)
        write_json(target, document)


def _settings(changes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Those of all other systems, changed by `SYSTEM.KEY=VALUE`."""
    settings = {system: dict(own) for system, own in PEERS.items()}
    for change in changes:
        place, _, value = change.partition("=")
        system, _, key = place.partition(".")
        if key not in settings.get(system, {}):
            raise UsageError(f"there is no setting {place}: --set takes SYSTEM.KEY=VALUE, e.g. pykeen.lr=0.1")
        kind = type(settings[system][key])
        try:
            settings[system][key] = kind(value)
        except ValueError as error:
            raise UsageError(f"{place} is a number, not {value!r}") from error
    return settings


def _facts(graph: Graph, split: Split) -> Ints:
    """The facts (n, 3) of a level."""
    edges = graph.at(split)
    heads, relations = edges.heads_and_relations()
    forward = relations % 2 == 0
    return np.stack([heads[forward], relations[forward] // 2, edges.tails[forward]], axis=1)


def _own_facts(graph: Graph, split: Split) -> Ints:
    """The facts (n, 3) that a level adds to the one below."""
    below = set(map(tuple, _facts(graph, smaller(split)).tolist()))
    return np.array([fact for fact in _facts(graph, split).tolist() if tuple(fact) not in below]).reshape(-1, 3)


def _peer(python: Path, system: str, folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    (folder / "job.json").write_text(json.dumps(job), "utf-8")
    script = Path(__file__).with_name("peers_train.py")
    seconds = _run([str(python), str(script), system, str(folder)], system)
    found = json.loads((folder / "ranks.json").read_text("utf-8"))
    ranked = (np.array(found.pop(name)) for name in ("greater", "equal"))
    return {**figures(*ranked), **found, "wall_seconds": seconds, "settings": job["settings"]}


def _ours(told: argparse.Namespace, folder: Path, graph: Graph, facts: Ints, known: Ints) -> dict[str, Any]:
    place, trained = Path(told.ours), {}
    if not place.is_dir():
        place = folder / "run"
        words = {"graph": told.graph, "minutes": f"{told.minutes:g}", "seed": told.seed, "run": place}
        command = [word.format(**words) for word in shlex.split(told.ours)]
        seconds = _run([sys.executable, "-m", "query2particles", *command], OURS)
        trained = {"wall_seconds": seconds, "command": f"q2p {told.ours}"}
    run = open_run(place)
    run.check(graph)
    model, asked = run.model(graph), Disjuncts.of(SHAPES["1p"], "native")

    def scores(some: Ints, inverse: int) -> torch.Tensor:
        sources, relations, _ = directed(some, inverse)
        return asked.scores(model, np.stack([sources, relations], axis=1), len(graph.entities))

    with scoring(model):
        ranked = count(scores, facts, known)
    return {
        **figures(*ranked),
        "seconds": round(run.cost()[0], 1),
        "versions": {OURS: __version__, "torch": torch.__version__, "numpy": np.__version__},
        **trained,
        "settings": run.config.as_json(),
    }


def _run(command: Sequence[str], system: str) -> float:
    """How long it took, in seconds."""
    start = time.monotonic()
    done = subprocess.run(command, check=False, stdout=sys.stderr)
    if done.returncode:
        raise UsageError(f"{system} ended with {done.returncode}; what it said is above")
    return round(time.monotonic() - start, 1)


if __name__ == "__main__":
    main()
