"""`q2p bench` and `q2p report`: measure, and make pages of what was measured."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from query2particles.cli.root import Json, app

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
    from query2particles.bench import bench_data, bench_exact, bench_import, bench_sample
    from query2particles.files import write_json
    from query2particles.query.algebra import SHAPES
    from query2particles.show import note, print_bench, print_json

    if name is BenchName.import_:
        result = bench_import(triples, note)
    else:
        graph, batch, cap = bench_data(data, count, note)
        if name is BenchName.exact:
            result = bench_exact(graph, batch, note)
        else:
            result = bench_sample(graph, count=count, cap=cap, shapes=list(SHAPES.values()), say=note)
    if out is not None:
        write_json(out / f"bench-{name.value}.json", result.as_json())
    if json:
        print_json(result.as_json())
    else:
        print_bench(result)


@app.command()
def report(
    results: Annotated[Path, typer.Option(help="The folder of result files.")] = Path("benchmarks/results"),
    docs: Annotated[Path, typer.Option(help="Where the pages go.")] = Path("docs"),
    json: Json = False,
) -> None:
    """Tables from benchmarks/results, as pages of the documentation."""
    from query2particles.report import write_report
    from query2particles.show import note, print_json

    pages = write_report(results, docs)
    if json:
        print_json({"pages": list(map(str, pages))})
    else:
        note(f"Saved in {', '.join(map(str, pages))}.")
