"""The command `q2p`: parses, calls a verb, prints. Exit codes: 0 done, 1 the work failed, 2 the call was wrong.

Everything heavy is imported inside the commands, so that `q2p --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from query2particles import __version__
from query2particles.errors import Query2ParticlesError, QueryError, UsageError

if TYPE_CHECKING:
    from query2particles.engine.exact import Batch
    from query2particles.graph.graph import Graph, Split
    from query2particles.query.algebra import Query
    from query2particles.query.syntax import Syntax

__all__ = ["main"]

app = typer.Typer(
    name="q2p",
    help="Answers first-order-logic questions over incomplete knowledge graphs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
graph_app = typer.Typer(help="Import a graph, or look at one.", no_args_is_help=True)
data_app = typer.Typer(help="Benchmark folders.", no_args_is_help=True)
app.add_typer(graph_app, name="graph")
app.add_typer(data_app, name="data")


class SplitName(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


class SyntaxName(StrEnum):
    path = "path"
    logic = "logic"
    sparql = "sparql"
    json = "json"


class FormatName(StrEnum):
    tsv = "tsv"
    csv = "csv"
    parquet = "parquet"
    nt = "nt"
    ttl = "ttl"


class MethodName(StrEnum):
    exact = "exact"


class BenchName(StrEnum):
    exact = "exact"
    sample = "sample"
    # `import` is a keyword of Python, not of the command line
    import_ = "import"


class Unseen(StrEnum):
    error = "error"
    drop = "drop"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
GraphName = Annotated[str, typer.Argument(metavar="GRAPH", help="A graph folder, a benchmark folder, or `atlas`.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"query2particles {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    del version


@app.command()
def demo(
    count: Annotated[int, typer.Option(min=1, help="Queries to draw of each shape.")] = 20,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    json: Json = False,
) -> None:
    """The main job, end to end, on the embedded graph."""
    from dataclasses import asdict

    from query2particles.demo import ask_all, draw_all
    from query2particles.graph.folders import ATLAS, open_graph
    from query2particles.query.algebra import SHAPES
    from query2particles.show import describe_graph, print_answered, print_graph, print_json, print_table, progress_bar

    graph = open_graph(ATLAS)
    answered = list(ask_all(graph))
    with progress_bar("drawing queries", count * len(SHAPES)) as progress:
        drawn = list(draw_all(graph, count=count, seed=seed, progress=progress))
    if json:
        questions = [{"words": words, **found.as_json()} for words, _, found in answered]
        print_json({"graph": describe_graph(graph), "questions": questions, "samples": list(map(asdict, drawn))})
        return
    print_graph(graph)
    for words, text, found in answered:
        typer.echo(f"\n{words}\n{text}\n")
        print_answered(found)
    typer.echo()
    print_table(
        f"Fresh test queries, seed {seed}: easy answers follow from the known facts, hard ones need a missing fact",
        ("shape", "queries", "easy", "hard", "one of them"),
        [(row.shape, row.queries, row.easy, row.hard, row.example) for row in drawn],
        right=(1, 2, 3),
    )
    typer.echo("\nAsk one yourself:  q2p answer atlas 'Canada.^citizen_of & \"Turing Award\".^award_received'")


@graph_app.command("import")
def graph_import(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE…", help="Files or folders of triples.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The graph folder to write.")],
    format: Annotated[FormatName | None, typer.Option(help="By default, by each file's ending.")] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Of TSV and CSV; by default, detected.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Head, relation and tail as three names or numbers from 1, e.g. `2,1,3`.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="What separates cells; by default tab or comma.")] = None,
    labels: Annotated[Path | None, typer.Option(help="A TSV file of names and labels.")] = None,
    literals: Annotated[bool, typer.Option(help="Keep RDF literals as entities.")] = False,
    valid: Annotated[list[Path] | None, typer.Option(help="File(s) of validation facts.")] = None,
    test: Annotated[list[Path] | None, typer.Option(help="File(s) of test facts.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Draw validation and test facts at random: two fractions, e.g. `0.1,0.1`.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random split.")] = 0,
    unseen: Annotated[
        Unseen, typer.Option(help="What to do with valid or test facts about what training never saw.")
    ] = Unseen.error,
    name: Annotated[str | None, typer.Option(help="The graph's name; by default, the source's.")] = None,
    attribution: Annotated[str | None, typer.Option(help="Whom the data come from; `graph info` shows it.")] = None,
    json: Json = False,
) -> None:
    """Files of triples (tsv, csv, nt, ttl, parquet; also .gz and .xz), or a benchmark folder, to a graph folder."""
    from query2particles.files import check_replaceable
    from query2particles.graph.folders import is_known_folder, open_graph
    from query2particles.graph.graph import is_graph_file
    from query2particles.graph.load import ImportOptions, import_graph
    from query2particles.show import describe_graph, note, print_graph, print_json, progress_bytes

    check_replaceable(out, is_graph_file)
    if len(sources) == 1 and is_known_folder(sources[0]):
        graph = open_graph(sources[0])
    else:
        options = ImportOptions(
            format=format.value if format else None,
            header=header,
            columns=_columns(columns),
            delimiter=delimiter,
            literals=literals,
            labels=labels,
            valid=valid or (),
            test=test or (),
            fractions=_fractions(split),
            seed=seed,
            unseen=unseen.value,
            name=name,
            attribution=attribution,
        )
        with progress_bytes("reading") as progress:
            graph = import_graph(sources, options=options, progress=progress)
    graph.save(out)
    if json:
        print_json(describe_graph(graph))
    else:
        print_graph(graph)
        note(f"\nSaved in {out}. Next:  q2p answer {out} QUERY   or   q2p sample {out} --out QUERIES")


@graph_app.command("info")
def graph_info(
    graph: GraphName,
    relations: Annotated[int, typer.Option(min=0, help="How many relations to list.")] = 20,
    json: Json = False,
) -> None:
    """The figures of a graph."""
    from query2particles.graph.folders import open_graph
    from query2particles.show import describe_graph, print_graph, print_json

    opened = open_graph(graph)
    if json:
        print_json(describe_graph(opened))
    else:
        print_graph(opened, relations)


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
) -> None:
    """An original benchmark folder's queries as JSON lines with checksums. Pickles are read by an allow-list."""
    from query2particles.graph.folders import open_graph
    from query2particles.show import note
    from query2particles.workload.originals import convert_original

    convert_original(open_graph(folder), folder, out)
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
    seed: Annotated[int, typer.Option(min=0)] = 0,
    every_1p: Annotated[
        bool, typer.Option("--every-1p", help="All one-hop queries of the split, as the benchmarks have it.")
    ] = False,
    allow_fewer: Annotated[
        bool, typer.Option("--allow-fewer", help="Write what there is where a shape cannot be grounded often enough.")
    ] = False,
    json: Json = False,
) -> None:
    """Draw queries by the benchmarks' procedure and write them with the checksums of their answers."""
    from query2particles.files import check_replaceable
    from query2particles.graph.folders import open_graph
    from query2particles.query.algebra import SHAPES, nickname
    from query2particles.show import note, print_json, print_table, progress_bar
    from query2particles.workload.benchmark import is_set_file, write_set
    from query2particles.workload.sample import sample_shape

    opened = open_graph(graph)
    check_replaceable(out, is_set_file)
    wanted = _shapes(shapes)
    drawn = []
    with progress_bar("drawing queries", count * len(wanted)) as progress:
        for shape in wanted:
            many = None if every_1p and shape == SHAPES["1p"] else count
            drawn.append(
                sample_shape(
                    opened,
                    shape,
                    many,
                    split=_split(split),
                    cap=cap,
                    seed=seed,
                    allow_fewer=allow_fewer,
                    progress=progress,
                )
            )
    about = {"source": f"drawn by query2particles {__version__} from {opened.name}, cap {cap}, seed {seed}"}
    write_set(
        out, _split(split), {one.shape: one.ids for one in drawn}, {one.shape: one.labels for one in drawn}, about
    )
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


@app.command()
def answer(
    graph: GraphName,
    query: Annotated[str | None, typer.Argument(metavar="QUERY", help="A question in any of the syntaxes.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="A file of questions, one a line, `#` for remarks; `-` for stdin."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many answers to name.")] = 10,
    method: Annotated[MethodName, typer.Option(help="`exact`: what follows from stored facts.")] = MethodName.exact,
    syntax: Annotated[SyntaxName | None, typer.Option(help="By default, guessed from the text.")] = None,
    split: Annotated[
        SplitName, typer.Option(help="The facts to use: those of train, train + valid, or all.")
    ] = SplitName.test,
    json: Json = False,
) -> None:
    """Answer a question, or a file of them."""
    from query2particles.answer import ask
    from query2particles.graph.folders import open_graph
    from query2particles.show import print_answered, print_json

    del method  # there is one so far; the option is here so that scripts can name it
    if (query is None) == (file is None):
        raise UsageError("name either a QUERY or a --file of them")
    opened = open_graph(graph)
    written: Syntax | None = syntax.value if syntax else None
    if query is not None:
        found = ask(opened, query, k=k, syntax=written, split=_split(split))
        print_json(found.as_json()) if json else print_answered(found)
        return
    results, failed = [], 0
    assert file is not None
    for number, line in _questions(file):
        try:
            found = ask(opened, line, k=k, syntax=written, split=_split(split))
        except QueryError as error:
            failed += 1
            results.append({"line": number, "question": line, "error": str(error)})
            if not json:
                typer.echo(f"line {number}: {error}\n", err=True)
            continue
        results.append({"line": number, **found.as_json()})
        if not json:
            print_answered(found)
            typer.echo()
    if json:
        print_json(results)
    if failed:
        typer.echo(f"{failed} of {len(results)} questions could not be understood", err=True)
        raise typer.Exit(1)


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


def _questions(file: Path) -> Iterator[tuple[int, str]]:
    """The questions of a file with their line numbers; blank lines and remarks are passed over."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.strip()


def _shapes(text: str) -> list[Query]:
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


def _columns(text: str | None) -> tuple[int | str, int | str, int | str] | None:
    if text is None:
        return None
    parts = [int(part) if part.strip().isdigit() else part.strip() for part in text.split(",")]
    if len(parts) != 3:
        raise UsageError(f"--columns takes three, for head, relation and tail, e.g. `2,1,3`; found {text!r}")
    return parts[0], parts[1], parts[2]


def _fractions(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        valid, test = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"--split takes two fractions, for valid and test, e.g. `0.1,0.1`; found {text!r}") from None
    return valid, test


def _split(name: SplitName) -> Split:
    return name.value


def main() -> None:
    """The entry point: errors of ours become one message and an exit code."""
    try:
        app()
    except Query2ParticlesError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError | QueryError) else 1)
    except BrokenPipeError:
        # The reader has left (`q2p … | head`); nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
