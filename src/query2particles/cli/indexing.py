"""`q2p index`: make large runs quick to ask; and the options by which commands say how a run is searched."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from query2particles.cli.root import Json, Seed, app
from query2particles.errors import UsageError

if TYPE_CHECKING:
    from query2particles.engine.exact import Batch
    from query2particles.graph.graph import Graph, Split
    from query2particles.searched import Searching

__all__ = ["ClusterSize", "DegradedName", "SearchBy", "SearchName", "WhenDegraded", "index", "searching"]


class SearchName(StrEnum):
    auto = "auto"
    # `index` is a method of text
    index_ = "index"
    exact = "exact"


class DegradedName(StrEnum):
    refuse = "refuse"
    allow = "allow"


SearchBy = Annotated[
    SearchName,
    typer.Option(
        "--search",
        help="How the best entities are found: by the run's index, or by the scores of all. `auto`: by the index where "
        "there is one.",
    ),
]


ClusterSize = Annotated[
    int,
    typer.Option(
        "--cluster",
        min=0,
        help="How many processes of a Ray cluster share the table of entities (RAY_ADDRESS names the cluster; without "
        "it, they run here). 0: none.",
    ),
]
WhenDegraded = Annotated[
    DegradedName,
    typer.Option("--degraded", help="When one of those is lost: refuse to answer, or answer from the others."),
]


def searching(by: SearchName, cluster: int, degraded: DegradedName) -> Searching:
    """What the options say."""
    from query2particles.cluster import keep_ray_off_output
    from query2particles.searched import Searching

    if cluster:
        keep_ray_off_output()
    return Searching(by.value, cluster, degraded.value)


@app.command()
def index(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    recall: Annotated[
        float, typer.Option(min=0.01, max=1, help="The share of the best answers that must be found.")
    ] = 0.95,
    k: Annotated[int, typer.Option("-k", min=1, help="Of how many best answers that is the share.")] = 10,
    lists: Annotated[
        int | None,
        typer.Option(min=1, help="In how many lists the entities lie.", show_default="the root of their number"),
    ] = None,
    most_probes: Annotated[
        int | None,
        typer.Option(min=1, help="How many lists a particle may look into.", show_default="a quarter of them"),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="A folder of queries to measure by; without it, some are drawn from the graph.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Queries of each shape to measure by.")] = 50,
    graph: Annotated[str | None, typer.Option(help="The run's graph, where it is no longer where it was.")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Make an index of a run's entities, so that answers need not look at all of them; its recall is measured."""
    from dataclasses import asdict

    from query2particles.calibration import weights_digest
    from query2particles.engine.disjuncts import Disjuncts
    from query2particles.engine.particles import particles_of
    from query2particles.engine.ranks import scoring
    from query2particles.engine.table import Table
    from query2particles.files import check_replaceable
    from query2particles.index import FOLDER, build_index, is_index_file
    from query2particles.joined import Joined, open_run
    from query2particles.searched import Searching, model_for
    from query2particles.show import note, percent, print_json, progress_bar, say

    opened = open_run(run)
    user = "q2p answer, shell and serve use it (--search exact goes without)"
    if isinstance(opened, Joined):  # whose vectors have a table
        opened = opened.vectors
        user = "--method fast uses it, and best with --search index, or where there are a million entities"
    check_replaceable(opened.folder / FOLDER, is_index_file)
    own = opened.graph(graph)
    weights = weights_digest(opened)  # taken first: should training save newer ones meanwhile, they have no index
    model = model_for(opened, own, "cpu", Searching())
    table = Table.of(model)
    unions = opened.config.training.unions
    asked = _queries(own, queries, count, seed)
    able = {shape: ids for shape, ids in asked.items() if not Disjuncts.of(shape, unions).lacking(model)}
    with scoring(model):
        particles = list(particles_of(model, able, unions).values())
    with progress_bar("adding entities", len(table)) as progress:
        found = build_index(
            table,
            particles,
            opened.folder / FOLDER,
            weights=weights,
            recall=recall,
            k=k,
            lists=lists,
            most_probes=most_probes,
            progress=progress,
        )
    figures = found.figures
    if json:
        print_json({"run": str(run), "index": str(opened.folder / FOLDER), "entities": len(table), **asdict(figures)})
        return
    say(
        f"{len(table):,} entities in {figures.lists:,} lists; a particle looks into {figures.probes:,} of them, which "
        f"finds {percent(figures.recall)} % of the best {figures.k} (measured on {figures.queries:,} queries)"
    )
    note(f"Saved in {opened.folder / FOLDER}; {user}.")


def _queries(graph: Graph, folder: Path | None, count: int, seed: int) -> Batch:
    """Validation queries where there are such, otherwise those of training: what they ask is all that counts here."""
    from query2particles.show import progress_bar
    from query2particles.workload.selection import drawn_queries, stored_queries

    if folder is not None:
        return stored_queries(graph, folder, "valid", most=count)[0]
    split: Split = "valid" if graph.facts()["valid"] else "train"
    with progress_bar("drawing queries", None) as progress:
        found = drawn_queries(graph, split, most=count, seed=seed, progress=progress)[0]
    if not found:
        raise UsageError(f"no query could be drawn from {graph.name}; name a folder of some (--queries)")
    return found
