"""Documentation is tested: examples run, every command and error appears, generated pages are current."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from query2particles import errors
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph
from query2particles.query.names import Lexicon
from query2particles.query.syntax import Syntax, format_query, guess_syntax, parse_query
from query2particles.report import speed_page

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = ROOT / "docs" / "commands.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(page.read_text("utf-8")) if kind == language]


def test_the_five_lines_print_what_the_readme_says() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    (program,) = blocks(ROOT / "README.md", "python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "README.md", "exec"), {})
    assert f"prints\n\n```\n{printed.getvalue()}```" in text


def test_the_python_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    program = "\n".join(blocks(ROOT / "docs" / "python.md", "python"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "python.md", "exec"), {})
    assert "Graph('atlas', 6,227 entities" in printed.getvalue()
    assert "French.^speaks & !Canada.^citizen_of" in printed.getvalue()
    assert "This run is" in printed.getvalue()


EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
print([cell.outputs != [] for cell in notebook.cells if cell.cell_type == "code"])
"""


def test_the_tutorial_runs(tmp_path: Path) -> None:
    """In a process of its own, as Jupyter does it; what is stored has the output of an earlier run."""
    path = ROOT / "docs" / "tutorial.ipynb"
    found = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert found.stdout.strip() == str([cell["outputs"] != [] for cell in cells])
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])


@pytest.mark.parametrize("language", ["path", "logic", "sparql", "json"])
def test_questions_of_the_language_page(atlas: Graph, language: Syntax) -> None:
    lexicon = Lexicon(atlas)
    found = blocks(ROOT / "docs" / "query-language.md", language)
    assert found
    texts = found if language == "sparql" else [line for block in found for line in block.splitlines() if line]
    for text in texts:
        query = parse_query(text, lexicon)
        assert guess_syntax(text) == language
        if language != "sparql":
            assert parse_query(format_query(query, lexicon, language), lexicon) == query


@pytest.mark.parametrize("page", [page for page in PAGES if page != GENERATED], ids=lambda page: page.name)
def test_console_examples_run(page: Path, tmp_path: Path) -> None:
    """Every `$ q2p …` line works in a folder with the files that the pages speak of."""
    lines = [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
    if not lines:
        pytest.skip("no console examples")
    _lay_out(tmp_path)
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "q2p"
        done = subprocess.run(
            [sys.executable, "-m", "query2particles", *words[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        expected = _printed(page, line)
        if expected.startswith("error: "):
            assert done.returncode == 2
            assert done.stderr.strip() == expected.strip()
        else:
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def _printed(page: Path, line: str) -> str:
    """What the page shows below a command, up to the next one."""
    for block in blocks(page, "console"):
        if f"$ {line}\n" in block:
            return block.partition(f"$ {line}\n")[2].partition("\n$ ")[0]
    return ""


def _lay_out(folder: Path) -> None:
    """The files that the examples import."""
    import pyarrow as pa
    from pyarrow import parquet

    people = [f"p{number}" for number in range(40)]
    facts = [(one, "knows", people[(3 * number + 1) % 40]) for number, one in enumerate(people)]
    facts += [(one, "likes", people[(7 * number + 2) % 40]) for number, one in enumerate(people)]
    facts += [("alice", "knows", "p1"), ("alice", "knows", "p2"), ("p1", "knows", "alice"), ("p3", "likes", "alice")]
    lines = ["\t".join(fact) + "\n" for fact in facts]
    (folder / "facts.tsv").write_text("".join(lines))
    (folder / "train.tsv").write_text("".join(lines))
    (folder / "valid.tsv").write_text("p1\tlikes\talice\n")
    (folder / "test.tsv").write_text("p2\tlikes\talice\n")
    (folder / "people.csv").write_text("head,relation,tail\nann,knows,bob\n")
    (folder / "labels.tsv").write_text("ann\tAnn\n")
    import gzip

    (folder / "places.nt.gz").write_bytes(gzip.compress(b"<http://a/x> <http://a/in> <http://a/y> .\n"))
    columns = dict(zip(("subject", "predicate", "object"), zip(*facts, strict=True), strict=True))
    parquet.write_table(pa.table({name: list(column) for name, column in columns.items()}), folder / "facts.parquet")


def test_every_error_is_in_the_tree() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        assert name in errors.__doc__


def test_every_refusal_is_documented() -> None:
    text = (ROOT / "docs" / "query-language.md").read_text("utf-8")
    for word in (
        "cycles",
        "two free variables",
        "shared by branches",
        "existential leaf",
        "unbound variable",
        "OPTIONAL",
    ):
        assert word in text


def test_the_page_of_commands_is_current(tmp_path: Path) -> None:
    written = tmp_path / "commands.md"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "typer",
            "query2particles.cli",
            "utils",
            "docs",
            "--name",
            "q2p",
            "--output",
            str(written),
        ],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    assert written.read_text("utf-8") == (ROOT / "docs" / "commands.md").read_text("utf-8"), "run `make docs`"


def test_the_page_of_speed_is_current() -> None:
    page = (ROOT / "docs" / "speed.md").read_text("utf-8")
    assert page == speed_page(ROOT / "benchmarks" / "results"), "run `make docs`"


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "atlas" / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_figures_of_atlas_in_the_docs_are_true(atlas: Graph) -> None:
    text = (ROOT / "docs" / "graphs.md").read_text("utf-8")
    opened = open_graph("atlas")
    assert f"{len(opened.entities):,} entities, {len(opened.relations)} relations" in text
    assert f"{atlas.at('test').facts:,} facts" in text
