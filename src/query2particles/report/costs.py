"""What each training has cost, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from query2particles.experiments.published import trainings_of
from query2particles.experiments.recipes import experiment
from query2particles.report.markdown import table

__all__ = ["Trained", "costs", "size_of", "trained"]


@dataclass(frozen=True)
class Trained:
    """A training that results are of. Several may be of the same: other query sets, other ways to ask."""

    recipe: str
    seconds: float
    """Of one seed, their mean."""
    gpu_memory_gib: float
    size: str
    seeds: tuple[int, ...]
    machine: str
    commit: str


def trained(document: Mapping[str, Any]) -> Trained:
    return Trained(
        experiment(document["name"]).recipe.name,
        float(document["train_seconds"]),
        float(document["gpu_memory_gib"] or 0),
        size_of(document),
        tuple(document["seeds"]),
        document["machine"],
        " and ".join(map(_short, (document["commit"] or "unknown").split("; "))),
    )


def size_of(document: Mapping[str, Any]) -> str:
    """Updates × batch; of a joint reasoner, those of its parts, in each round where they are trained again."""
    size = " + ".join(f"{training['updates']:,} × {training['batch']:,}" for training in trainings_of(document))
    return f"2 × ({size})" if experiment(document["name"]).recipe.weights_of else size


def costs(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A row for each training, with the files of its results; those of one recipe side by side."""
    files: dict[Trained, list[str]] = {}
    for name, document in found.items():
        evaluated = document.get("evaluation_commit")
        later = f" (evaluated at {_short(evaluated)})" if evaluated else ""
        own = name.removeprefix(f"{document['graph'].lower()}-")
        files.setdefault(trained(document), []).append(f"[{own}](../benchmarks/results/{name}.json){later}")
    machines = {machine: number for number, machine in enumerate(dict.fromkeys(one.machine for one in files), start=1)}
    rows = [
        (
            f"`{one.recipe}`",
            f"{one.seconds:,.0f}",
            f"{one.gpu_memory_gib:.2f}" if one.gpu_memory_gib else "",
            one.size,
            ", ".join(map(str, one.seeds)),
            f"[{machines[one.machine]}]",
            one.commit,
            ", ".join(names),
        )
        for recipe in dict.fromkeys(one.recipe for one in files)
        for one, names in files.items()
        if one.recipe == recipe
    ]
    columns = (
        "training",
        "seconds a seed",
        "GPU memory, GiB",
        "updates × batch",
        "seeds",
        "machine",
        "commit",
        "results",
    )
    return [
        *table(columns, rows, text=("commit", "results")),
        "",
        *(f"- [{number}] {machine}" for machine, number in machines.items()),
    ]


def _short(commit: str) -> str:
    name, dirty, _ = commit.partition("-dirty")
    return name[:12] + dirty
