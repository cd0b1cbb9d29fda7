"""`q2p bench` and `q2p report`: measure, and make pages of what was measured."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from query2particles.cli.root import Json, app

if TYPE_CHECKING:
    from query2particles.engine.exact import Batch
    from query2particles.graph.graph import Graph

__all__ = ["bench", "report"]


class BenchName(StrEnum):
    exact = "exact"
    sample = "sample"
    # `import` is a keyword of Python, not of the command line
    import_ = "import"


@app.command()
def bench(
    name: Annotated[BenchName, typer.Argument(metavar="NAME", help="exact, sample or import.")],
    data: Annotated[
        Path | None,
        typer.Option(envvar="Q2P_DATA", help="Folder of benchmark graphs; FB15k-237 is used. Without it: atlas."),
    ] = None,
    count: Annotated[int, typer.Option(min=10, help="Queries of each shape.")] = 5000,
    triples: Annotated[int, typer.Option(min=1000, help="Of `bench import`.")] = 10_000_000,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A folder for bench-NAME.json, which `q2p report` reads."),
    ] = None,
    json: Json = False,
) -> None:
    """Speed, as ratios in one run."""
    from query2particles.bench import bench_exact, bench_import, bench_sample
    from query2particles.query.algebra import SHAPES
    from query2particles.show import note, print_bench, print_json, save_json

    if name is BenchName.import_:
        result = bench_import(triples, note)
    else:
        graph, batch, cap = _bench_data(data, count)
        if name is BenchName.exact:
            result = bench_exact(graph, batch, note)
        else:
            shapes = [shape for nick, shape in SHAPES.items() if nick != "1p"]
            result = bench_sample(graph, count=count, cap=cap, shapes=shapes, say=note)
    if out is not None:
        save_json(out / f"bench-{name.value}.json", result.as_json())
    if json:
        print_json(result.as_json())
    else:
        print_bench(result)


@app.command()
def report(
    results: Annotated[Path, typer.Option(help="The folder of result files.")] = Path("benchmarks/results"),
    docs: Annotated[Path, typer.Option(help="Where the pages go.")] = Path("docs"),
) -> None:
    """Tables from benchmarks/results, as pages of the documentation."""
    from query2particles.report import write_report
    from query2particles.show import note

    for page in write_report(results, docs):
        note(f"Saved in {page}.")


def _bench_data(data: Path | None, count: int) -> tuple[Graph, Batch, int]:
    """FB15k-237 with its resampled test queries where the data are at hand, otherwise atlas with fresh ones."""
    from query2particles.graph.folders import ATLAS, open_graph
    from query2particles.query.algebra import SHAPES
    from query2particles.show import note
    from query2particles.workload.benchmark import read_set
    from query2particles.workload.sample import sample_shape

    if data is not None:
        folder = data / "FB15k-237"
        batch = read_set(folder / "betae-resampled", "test", SHAPES)
        return open_graph(folder), {shape: ids[:count] for shape, ids in batch.items()}, 120
    note("no --data: measuring on the small embedded graph, where ratios are lower")
    graph = open_graph(ATLAS)
    drawn = {
        shape: sample_shape(graph, shape, count, split="test", cap=100, allow_fewer=True).ids
        for shape in SHAPES.values()
    }
    return graph, drawn, 100
