"""`q2p sample` and `q2p data`: sets of queries with their answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from query2particles import __version__
from query2particles.cli.root import GraphName, Json, Seed, SplitName, app, split_of
from query2particles.errors import SamplingError

if TYPE_CHECKING:
    from query2particles.query.algebra import Query

__all__ = ["data_app", "shapes_named"]

data_app = typer.Typer(help="Benchmark folders.", no_args_is_help=True)


@data_app.command("check")
def data_check(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Benchmark folders, or query sets in them.")],
    graph: Annotated[
        str | None, typer.Option(help="The graph, where it is not the folder itself or the one around it.")
    ] = None,
    json: Json = False,
) -> None:
    """Recompute every answer set of a benchmark folder and compare it with the stored checksums."""
    import time
    from dataclasses import asdict

    from query2particles.show import note, print_json, print_table, progress_bar
    from query2particles.workload.folders import check_folder

    started = time.perf_counter()
    checks: list[tuple[str, Any]] = []
    for folder in folders:
        with progress_bar(f"checking {folder.name}", None) as progress:
            checks += check_folder(folder, graph, progress=progress)
    verified = sum(check.queries for _, check in checks if check.checksum and not check.problem)
    wrong = [(place, check) for place, check in checks if check.problem]
    seconds = time.perf_counter() - started
    if json:
        print_json(
            {
                "verified_queries": verified,
                "problems": len(wrong),
                "seconds": round(seconds, 1),
                "files": [{"set": place, **asdict(check)} for place, check in checks],
            }
        )
    else:
        rows = [
            (place, check.name, check.queries, check.hard, check.problem or ("equal" if check.checksum else "answered"))
            for place, check in checks
        ]
        print_table("Recomputed answers", ("set", "file", "queries", "hard answers", "checksum"), rows, right=(2, 3))
        note(f"{verified:,} queries have the stored checksums; {len(wrong)} files differ; {seconds:.0f} s")
    if wrong:
        raise typer.Exit(1)


@data_app.command("convert")
def data_convert(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An original BetaE or Query2Box folder (pickles).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The query set to write, as JSON lines.")],
    json: Json = False,
) -> None:
    """An original benchmark folder's queries as JSON lines with checksums. Pickles are read by an allow-list."""
    from query2particles.graph.folders import open_graph
    from query2particles.show import note, print_json
    from query2particles.workload.benchmark import read_counts
    from query2particles.workload.originals import convert_original

    convert_original(open_graph(folder), folder, out)
    if json:
        print_json({"out": str(out), "files": read_counts(out)})
    else:
        note(f"Saved in {out}. Next:  q2p data check {out} --graph {folder}")


@app.command()
def sample(
    graph: GraphName,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of queries to write, or to add to.")],
    shapes: Annotated[
        str, typer.Option(help="Shapes by nickname or spelled, e.g. `2i,pi,i(p(e),u(p(e),p(e)))`.")
    ] = "all",
    count: Annotated[int, typer.Option(min=1, help="Queries of each shape.")] = 500,
    split: Annotated[
        SplitName, typer.Option(help="Training queries, or valid or test ones with hard answers.")
    ] = SplitName.test,
    cap: Annotated[int, typer.Option(min=1, help="The most new (or lost) answers that a query may have.")] = 100,
    seed: Seed = 0,
    every_1p: Annotated[
        bool, typer.Option("--every-1p", help="All one-hop queries of the split, as the benchmarks have it.")
    ] = False,
    allow_fewer: Annotated[
        bool, typer.Option("--allow-fewer", help="Write what there is where a shape cannot be grounded often enough.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace queries that the folder has already.")] = False,
    json: Json = False,
) -> None:
    """Draw queries by the benchmarks' procedure and write them with the checksums of their answers."""
    from query2particles.graph.folders import open_graph
    from query2particles.query.algebra import SHAPES, nickname
    from query2particles.show import note, print_json, print_table, progress_bar
    from query2particles.workload.benchmark import check_addable, write_set
    from query2particles.workload.sample import sample_shape

    opened = open_graph(graph)
    wanted = shapes_named(shapes)
    check_addable(out, opened, split_of(split), wanted, replace=replace)
    drawn = []
    with progress_bar("drawing queries", count * len(wanted)) as progress:
        for shape in wanted:
            many = None if every_1p and shape == SHAPES["1p"] else count
            drawn.append(
                sample_shape(
                    opened,
                    shape,
                    many,
                    split=split_of(split),
                    cap=cap,
                    seed=seed,
                    allow_fewer=allow_fewer,
                    progress=progress,
                )
            )
    about = {"source": f"drawn by query2particles {__version__} from {opened.name}, cap {cap}, seed {seed}"}
    kept = {one.shape: one for one in drawn if len(one.ids)}
    if not kept:
        raise SamplingError(f"no query of these shapes could be grounded on the {split.value} split of {opened.name}")
    batch, labels = (
        {shape: one.ids for shape, one in kept.items()},
        {shape: one.labels for shape, one in kept.items()},
    )
    write_set(out, opened, split_of(split), batch, labels, about=about, replace=replace)
    rows = [
        (
            nickname(one.shape),
            len(one.ids),
            int(one.labels.easy.sizes.sum()),
            int(one.labels.hard.sizes.sum()),
            one.attempts,
        )
        for one in drawn
    ]
    if json:
        keys = ("shape", "queries", "easy", "hard", "draws")
        print_json(
            {"out": str(out), "split": split.value, "shapes": [dict(zip(keys, row, strict=True)) for row in rows]}
        )
    else:
        print_table(
            f"{split.value} queries of {opened.name}",
            ("shape", "queries", "easy", "hard", "draws"),
            rows,
            right=(1, 2, 3, 4),
        )
        note(f"Saved in {out}. Next:  q2p data check {out} --graph {graph}")


def shapes_named(text: str) -> list[Query]:
    """Shapes from a comma-separated list; commas inside parentheses belong to a spelled shape."""
    from query2particles.query.algebra import SHAPES, shape_named

    if text == "all":
        return list(SHAPES.values())
    names, level = [""], 0
    for character in text:
        level += (character == "(") - (character == ")")
        if character == "," and level == 0:
            names.append("")
        else:
            names[-1] += character
    return list(dict.fromkeys(shape_named(name.strip()) for name in names))
