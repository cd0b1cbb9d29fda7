"""Pages from result files: every figure in its cell, what is missing named, what is broken refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from query2particles import report
from query2particles.errors import UsageError
from query2particles.experiments.published import GROUPS, figures_of, published
from query2particles.query.algebra import EPFO, NEGATION
from query2particles.report import method_times, results_page, speed_page, with_results, write_report

ROOT = Path(__file__).parent.parent


def document(
    name: str = "nell-betae-q2p", queries: str = "betae/test", shapes: tuple[str, ...] = EPFO
) -> dict[str, Any]:
    """A result whose figures tell where they stand: 1.0 for the first shape, 2.0 for the second …"""
    entries = {
        shape: {"queries": 10, "mrr": float(number), "hits@3": 10.0 + number, "best_hits@3": 20.0 + number}
        for number, shape in enumerate(shapes, start=1)
    }
    averages = {"epfo": {"mrr": 77.77, "hits@3": 66.66}, "negation": {"mrr": 55.55} if NEGATION[0] in shapes else {}}
    return {
        "name": name,
        "method": "q2p",
        "graph": "NELL",
        "queries": queries,
        "seeds": [0, 1],
        "config": {},
        "commit": "0123456789abcdef",
        "machine": "a machine",
        "train_seconds": 1234.5,
        "gpu_memory_gib": 2.5,
        "shapes": entries,
        "averages": averages,
        "per_seed": [],
    }


def write(folder: Path, one: dict[str, Any]) -> None:
    (folder / f"{one['name']}.json").write_text(json.dumps(one), "utf-8")


def row(page: str, start: str) -> list[str]:
    """The cells of the one row that begins so."""
    (found,) = [line for line in page.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def section(page: str, heading: str) -> str:
    return page.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_figures_stand_in_their_columns(tmp_path: Path) -> None:
    write(tmp_path, document(shapes=EPFO + NEGATION))
    nell = section(results_page(tmp_path), "NELL, betae")
    assert row(nell, "") == [*EPFO, "epfo", *NEGATION, "negation"]
    expected = [f"{number:.2f}" for number in range(1, 15)]
    assert row(nell, "`nell-betae-q2p`") == [*expected[:9], "77.77", *expected[9:], "55.55"]
    assert row(nell, "BetaE [1]")[:3] == ["53.0", "13.0", "11.4"]
    assert row(nell, "GQE [1]")[-6:] == [""] * 6
    assert "q2p reproduce nell-betae-q2p-paper" in nell
    assert "`q2p reproduce nell-betae-q2p`" not in nell


def test_both_kinds_of_hits_have_a_row(tmp_path: Path) -> None:
    write(tmp_path, document("nell-q2b-q2p", "q2b/test"))
    nell = section(results_page(tmp_path), "NELL, q2b")
    assert row(nell, "`nell-q2b-q2p`") == [*(f"{10 + number:.2f}" for number in range(1, 10)), "66.66"]
    assert row(nell, "… best_hits@3") == [*(f"{20 + number:.2f}" for number in range(1, 10)), "25.00"]
    assert row(nell, "Q2P [1]")[5:7] == ["47.0", "38.0"]  # pi before ip, other than in the paper's table


def test_where_a_number_comes_from(tmp_path: Path) -> None:
    write(tmp_path, document())
    (line,) = [line for line in results_page(tmp_path).splitlines() if line.startswith("- [`nell-betae-q2p`]")]
    for words in ("results/nell-betae-q2p.json", "seeds 0, 1", "1,234 s", "2.50 GiB", "a machine", "0123456789ab"):
        assert words in line


def test_every_commit_is_named(tmp_path: Path) -> None:
    commits = f"{'a' * 40}-dirty; {'b' * 40}"
    write(tmp_path, {**document(), "commit": commits, "evaluation_commit": "c" * 40})
    page = results_page(tmp_path)
    assert f"commit {'a' * 12}-dirty and {'b' * 12}, evaluated at {'c' * 12}\n" in page
    write(tmp_path, {**document(), "commit": None})
    assert "commit unknown\n" in results_page(tmp_path)


def test_an_average_needs_its_whole_group() -> None:
    assert "epfo" not in figures_of(document(shapes=EPFO[:8]), "mrr")
    assert figures_of(document(), "best_hits@3")["epfo"] == 25.0


def test_without_results_the_page_says_what_makes_them(tmp_path: Path) -> None:
    page = results_page(tmp_path)
    for name in ("nell-betae-q2p", "fb15k-237-q2b-q2p", "fb15k-betae-q2p-released"):
        assert f"`q2p reproduce {name}`" in page
    assert "Where the numbers come from" not in page


@pytest.mark.parametrize("text", ["{}", "[]", "nothing", '{"queries": "other/test", "shapes": {}, "averages": {}}'])
def test_a_broken_result_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "nell-betae-q2p.json").write_text(text, "utf-8")
    with pytest.raises(UsageError, match="make it again"):
        results_page(tmp_path)


def test_a_bench_without_engine_and_plain_is_a_list(tmp_path: Path) -> None:
    bench = {
        "about": "cuda, FB15k-237",
        "machine": "a machine",
        "version": "0",
        "seed": 0,
        "compares": "an update / its own score products",
        "figures": {"FB15k-237 queries/s": 2100000, "FB15k-237 ms per update": 3.25},
        "ratios": {"FB15k-237": 3.5},
    }
    (tmp_path / "bench-train-cuda.json").write_text(json.dumps(bench), "utf-8")
    page = speed_page(tmp_path)
    assert "## Training on a GPU" in page
    assert row(page, "FB15k-237 queries/s") == ["2,100,000"]
    assert "| an update / its own score products | ratio |" in page
    assert row(page, "FB15k-237") == ["3.5"]


def times_document() -> dict[str, Any]:
    figures = {"q2p 1p batch 1 ms": 1234.5, "q2p 2in batch 1 ms": 0.01234, "gqe 1p batch 1 ms": 5.678}
    return {
        "about": "cuda, FB15k",
        "machine": "a machine",
        "version": "0",
        "seed": 0,
        "compares": "times as long for one as for another",
        "figures": {**figures, "q2p 1p batch 128 ms": 99.96, "q2p 2in batch 128 ms": 2.0, "gqe 1p batch 128 ms": 0.5},
        "ratios": {"2p batch 1": 17.25, "3p batch 1": 123.4, "2p batch 128": 1.5, "3p batch 128": 2.5},
    }


def test_times_of_methods_are_tables(tmp_path: Path) -> None:
    (tmp_path / "bench-answer-methods-cuda.json").write_text(json.dumps(times_document()), "utf-8")
    part = section(speed_page(tmp_path), "Answers of all methods on a GPU")
    assert "--all-methods" in part
    assert "cuda, FB15k; a machine" in part
    titles = (
        "Milliseconds a query, batch 1:",
        "Milliseconds a query, batch 128:",
        "Times as long for one as for another:",
    )
    one, many, ratios = (part.partition(f"{title}\n\n")[2].partition("\n\n")[0] for title in titles)
    assert row(one, "") == ["1p", "2in"]
    assert row(one, "q2p") == ["1,234", "0.0123"]
    assert row(one, "gqe") == ["5.68", ""]
    assert row(many, "q2p") == ["100", "2"]
    assert row(ratios, "") == ["2p", "3p"]
    assert row(ratios, "batch 1") == ["17.2", "123"]
    assert row(ratios, "batch 128") == ["1.5", "2.5"]


def test_a_picture_is_shown_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "bench-answer-methods-cpu.json").write_text(json.dumps(times_document()), "utf-8")
    assert "![" not in speed_page(tmp_path)
    (tmp_path / "bench-answer-methods-cpu.png").write_bytes(b"")
    assert "](../benchmarks/results/bench-answer-methods-cpu.png)\n" in speed_page(tmp_path)


def test_times_by_batch_size_method_and_shape() -> None:
    assert method_times({**times_document()["figures"], "all median ms": 3.0}) == {
        1: {"q2p": {"1p": 1234.5, "2in": 0.01234}, "gqe": {"1p": 5.678}},
        128: {"q2p": {"1p": 99.96, "2in": 2.0}, "gqe": {"1p": 0.5}},
    }


def test_nothing_is_written_where_a_page_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "bench-exact.json").write_text(
        (ROOT / "benchmarks/results/bench-exact.json").read_text("utf-8"), "utf-8"
    )
    (tmp_path / "nell-betae-q2p.json").write_text("{}", "utf-8")
    with pytest.raises(UsageError):
        write_report(tmp_path, tmp_path / "docs")
    assert not (tmp_path / "docs").exists()
    (tmp_path / "nell-betae-q2p.json").unlink()
    assert write_report(tmp_path, tmp_path / "docs") == [tmp_path / "docs/speed.md", tmp_path / "docs/results.md"]


def test_the_page_of_results_is_current() -> None:
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    assert page == results_page(ROOT / "benchmarks" / "results"), "run `make docs`"


def test_results_by_hardness(tmp_path: Path) -> None:
    """Of those results that have it: a table more."""
    name = "nell-betae-q2p"
    document = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8"))
    for group in document["averages"].values():
        group.pop("hardness", None)
    (tmp_path / f"{name}.json").write_text(json.dumps(document), "utf-8")
    assert "best proof" not in results_page(tmp_path)
    document["averages"]["epfo"]["hardness"] = {"1": 30.5, "2": 4.25}
    document["averages"]["negation"]["hardness"] = {"1": 7.0}
    (tmp_path / f"{name}.json").write_text(json.dumps(document), "utf-8")
    page = results_page(tmp_path)
    assert "|  | EPFO, 1 | EPFO, 2 | negation, 1 |" in page
    assert f"| `{name}` | 30.50 | 4.25 | 7.00 |" in page


def test_the_results_in_the_readme_are_current() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert readme == with_results(readme, ROOT / "benchmarks" / "results"), "run `make docs`"


def test_the_table_of_averages(tmp_path: Path) -> None:
    """What was measured, what was printed, and nothing where there is neither; the text around it stays."""
    for name in ("nell-betae-q2p", "nell-q2b-q2p", "nell-betae-gqe", "nell-q2b-emql"):
        shutil.copy(ROOT / "benchmarks" / "results" / f"{name}.json", tmp_path)
    found = {
        name: json.loads((tmp_path / f"{name}.json").read_text("utf-8"))["averages"] for name in ("nell-betae-q2p",)
    }
    ours = " / ".join(f"{found['nell-betae-q2p'][group]['mrr']:.1f}" for group in ("epfo", "negation"))
    marks = report._README
    text = f"before\n{marks[0]}\nold\n{marks[1]}\nafter\n"
    made = with_results(text, tmp_path)
    lines = made.splitlines()
    assert made.startswith(f"before\n{marks[0]}\n")
    assert made.endswith(f"\n{marks[1]}\nafter\n")
    assert "old" not in made
    assert with_results(made, tmp_path) == made
    (row,) = (line for line in lines if line.startswith("| Q2P "))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[1] == f"{ours} (25.5 / 6.0)"
    assert cells[2] == "(21.9 / 6.0)"
    shapes = json.loads((tmp_path / "nell-q2b-emql.json").read_text("utf-8"))["shapes"]
    of_best = sum(own["best_hits@3"] for own in shapes.values()) / len(shapes)
    (row,) = (line for line in lines if line.startswith("| EmQL "))
    assert row.split("|")[5].strip() == f"{of_best:.1f} (46.8)", "as its paper counts"
    assert not any(line.startswith("| tree") for line in lines)
    with pytest.raises(UsageError, match="no line"):
        with_results(text.replace(marks[1], ""), tmp_path)


def test_published_averages_are_those_of_their_rows() -> None:
    """Against slips in copying: the papers round, and three averages of theirs are off by up to a fifth."""
    whole = 0
    for one in published():
        for group, shapes in GROUPS.items():
            if group in one.values and all(shape in one.values for shape in shapes):
                whole += 1
                mean = sum(one.values[shape] for shape in shapes) / len(shapes)
                assert one.values[group] == pytest.approx(mean, abs=0.19), (one.method, one.graph, group)
    assert whole == 30
