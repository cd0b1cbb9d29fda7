"""`q2p sample` and `q2p data`: sets of queries with their answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from query2particles import __version__
from query2particles.cli.root import GraphName, Json, Seed, SplitName, app, split_of
from query2particles.errors import SamplingError, UsageError, clipped

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
    missing: Annotated[
        str | None,
        typer.Option(
            "--missing",
            metavar="N|all",
            help="A hard set: only answers whose best proof lacks exactly N links of the training graph are ranked. "
            "`all` is every hop of the shape; with several, e.g. `1,2,3`, there are --count queries of each.",
        ),
    ] = None,
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
    from query2particles.workload.sample import joined_samples, sample_shape

    opened = open_graph(graph)
    wanted = _with_missing(shapes_named(shapes), missing)
    check_addable(out, opened, split_of(split), wanted, replace=replace)
    drawn = []
    with progress_bar("drawing queries", count * len(wanted)) as progress:
        for shape, number in wanted:
            many = None if every_1p and shape == SHAPES["1p"] else count
            drawn.append(
                sample_shape(
                    opened,
                    shape,
                    many,
                    split=split_of(split),
                    cap=cap,
                    seed=seed,
                    missing=number,
                    allow_fewer=allow_fewer,
                    progress=progress,
                )
            )
    about = {"source": f"drawn by query2particles {__version__} from {opened.name}, cap {cap}, seed {seed}"}
    batch, labels, numbers = joined_samples(drawn)
    if not batch:
        raise SamplingError(f"no query of these shapes could be grounded on the {split.value} split of {opened.name}")
    write_set(out, opened, split_of(split), batch, labels, missing=numbers, about=about, replace=replace)
    rows = [
        {
            "shape": nickname(one.shape),
            **({"missing": one.missing} if missing else {}),
            "queries": len(one.ids),
            "easy": int(one.labels.easy.sizes.sum()),
            "hard": int(one.labels.hard.sizes.sum()),
            "draws": one.attempts,
        }
        for one in drawn
    ]
    if json:
        print_json({"out": str(out), "split": split.value, "shapes": rows})
    else:
        title = f"{split.value} queries of {opened.name}"
        print_table(title, tuple(rows[0]), [tuple(row.values()) for row in rows], right=range(1, len(rows[0])))
        note(f"Saved in {out}. Next:  q2p data check {out} --graph {graph}")


def _with_missing(shapes: list[Query], text: str | None) -> list[tuple[Query, int]]:
    """Every shape with the numbers of missing links to draw queries of; 0 where any number will do."""
    from query2particles.query.algebra import nickname
    from query2particles.show import note
    from query2particles.workload.hardness import most_missing

    if text is None:
        return [(shape, 0) for shape in shapes]
    numbers = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(part == "all" or (part.isascii() and part.isdigit() and int(part)) for part in numbers):
        raise UsageError(f"--missing {clipped(text)} is neither `all` nor numbers of links, such as 2 or 1,2,3")
    possible: dict[tuple[Query, int], None] = {}
    left_out = []
    for shape in shapes:
        most = most_missing(shape)
        for part in numbers:
            number = most if part == "all" else int(part)
            if 0 < number <= most:
                possible[shape, number] = None
            else:
                left_out.append(f"{part} of {nickname(shape)}")
    if left_out:
        words = f"no answer lacks so many links: {', '.join(left_out)}"
        if not possible:
            raise UsageError(f"{words}; name other --shapes, or fewer links (--missing)")
        note(f"note: {words}: left out")
    return list(possible)


def shapes_named(text: str) -> list[Query]:
    """Shapes from a comma-separated list, `all` for the fourteen; commas in parentheses belong to a spelled shape."""
    from query2particles.query.algebra import SHAPES, shape_named

    names, level = [""], 0
    for character in text:
        level += (character == "(") - (character == ")")
        if character == "," and level == 0:
            names.append("")
        else:
            names[-1] += character
    several = (SHAPES.values() if name.strip() == "all" else [shape_named(name.strip())] for name in names)
    return list(dict.fromkeys(shape for own in several for shape in own))
