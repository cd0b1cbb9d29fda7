"""Pages from result files: every figure in its cell, what is missing named, what is broken refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from query2particles.errors import UsageError
from query2particles.experiments.published import GROUPS, figures_of, published, study
from query2particles.experiments.recipes import experiment
from query2particles.plot import plot_growth
from query2particles.query.algebra import EPFO, NEGATION, SHAPES
from query2particles.report import method_times, results, results_page, speed_page, with_results, write_report
from query2particles.report.documents import read_results
from query2particles.report.growth import GROWTH_FIGURE, measured_growth
from query2particles.report.studies import PARTICLES_FIGURE, particle_curves

ROOT = Path(__file__).parent.parent


def document(
    name: str = "nell-betae-q2p", queries: str = "betae/test", shapes: tuple[str, ...] = EPFO
) -> dict[str, Any]:
    """A result whose figures tell where they stand: 1.0 for the first shape, 2.0 for the second …

    Its settings are those that its recipe has now.
    """
    one = experiment(name)
    parts = dict(zip(("vectors", "links"), (part.config.as_json() for part in one.recipe.parts), strict=False))
    entries = {
        shape: {"queries": 10, "mrr": float(number), "hits@3": 10.0 + number, "best_hits@3": 20.0 + number}
        for number, shape in enumerate(shapes, start=1)
    }
    averages = {"epfo": {"mrr": 77.77, "hits@3": 66.66}, "negation": {"mrr": 55.55} if NEGATION[0] in shapes else {}}
    return {
        "name": name,
        "method": "best" if parts else one.config.method,
        "graph": one.recipe.graph,
        "queries": queries,
        "seeds": [0, 1],
        "config": parts or one.config.as_json(),
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
    (missing,) = [line for line in nell.splitlines() if line.startswith("Not measured yet")]
    assert "`q2p reproduce nell-betae-NAME`" in missing
    names = missing.partition("): ")[2].removesuffix(".").split(", ")
    assert {"gqe", "cqd-beam", "best-known"} <= set(names)
    assert "q2p" not in names


def test_both_kinds_of_hits_have_a_row(tmp_path: Path) -> None:
    write(tmp_path, document("nell-q2b-q2p", "q2b/test"))
    nell = section(results_page(tmp_path), "NELL, q2b")
    assert row(nell, "`nell-q2b-q2p`") == [*(f"{10 + number:.2f}" for number in range(1, 10)), "66.66"]
    assert row(nell, "… best_hits@3") == [*(f"{20 + number:.2f}" for number in range(1, 10)), "25.00"]
    assert row(nell, "Q2P [1]")[5:7] == ["47.0", "38.0"]  # pi before ip, other than in the paper's table


def test_what_a_training_costs_and_where_its_numbers_are(tmp_path: Path) -> None:
    """One row for the results of one training, another for the same recipe trained again."""
    for name, kind in (("nell-betae-q2p", "betae"), ("nell-q2b-q2p", "q2b"), ("nell-betae-q2p-dnf", "betae")):
        write(tmp_path, document(name, f"{kind}/test"))
    write(tmp_path, {**document("nell-betae-q2p-de-morgan"), "train_seconds": 99.6, "gpu_memory_gib": 0})
    write(tmp_path, {**document("nell-betae-gqe"), "machine": "another machine"})
    cost = section(results_page(tmp_path), "Cost")
    cells = [line.strip("| ").split(" | ") for line in cost.splitlines() if line.startswith("| `nell-q2p` |")]
    assert cells[0][1:7] == ["1,234", "2.50", "5,000 × 4,096", "0, 1", "[1]", "0123456789ab"]
    assert [name in cells[0][7] for name in ("betae-q2p", "q2b-q2p", "betae-q2p-dnf")] == [True] * 3
    assert "](../benchmarks/results/nell-q2b-q2p.json)" in cells[0][7]
    assert "de-morgan" not in cells[0][7]
    assert cells[1][1:4] == ["100", "", "5,000 × 4,096"]
    assert len(cells) == 2
    assert row(cost, "`nell-gqe`")[4] == "[2]"
    assert "- [1] a machine\n- [2] another machine\n" in cost


def test_a_joint_reasoner_costs_what_its_parts_do(tmp_path: Path) -> None:
    write(tmp_path, document("nell-betae-best"))
    assert row(section(results_page(tmp_path), "Cost"), "`nell-best`")[2] == "5,000 × 4,096 + 12,000 × 1,024"


def test_parts_that_are_trained_again_cost_two_rounds(tmp_path: Path) -> None:
    write(tmp_path, document("nell-betae-best-retrained"))
    cells = row(section(results_page(tmp_path), "Cost"), "`nell-best-retrained`")
    assert cells[2] == "2 × (5,000 × 4,096 + 12,000 × 1,024)"


def test_every_commit_is_named(tmp_path: Path) -> None:
    commits = f"{'a' * 40}-dirty; {'b' * 40}"
    write(tmp_path, {**document(), "commit": commits, "evaluation_commit": "c" * 40})
    cells = row(section(results_page(tmp_path), "Cost"), "`nell-q2p`")
    assert cells[5] == f"{'a' * 12}-dirty and {'b' * 12}"
    assert cells[6].endswith(f"json) (evaluated at {'c' * 12})")
    write(tmp_path, {**document(), "commit": None})
    assert row(section(results_page(tmp_path), "Cost"), "`nell-q2p`")[5] == "unknown"


def shifted(name: str, points: float, **changes: Any) -> dict[str, Any]:
    """A result of all fourteen shapes with so many points more in every figure, on diverse queries 30 more yet."""
    kind = "q2b" if "-q2b-" in name else "betae"
    made = document(name, f"{kind}/test", EPFO + NEGATION)
    for entry in made["shapes"].values():
        for figure in ("mrr", "hits@3", "best_hits@3"):
            entry[figure] += points
        entry["divr"] = {"queries": 1, "mrr": entry["mrr"] + 30}
    for group in made["averages"].values():
        group.update({figure: value + points for figure, value in group.items()})
    return {**made, **changes}


def test_the_best_of_each_column_is_bold(tmp_path: Path) -> None:
    """What knows validation facts is no rival, and who leads without our own searches is said, too."""
    q2p, beam = shifted("nell-betae-q2p", 0), shifted("nell-betae-cqd-beam", -0.5)
    beam["shapes"]["2p"]["mrr"] = 2.5
    beam["shapes"]["3p"]["mrr"] = q2p["shapes"]["3p"]["mrr"]
    tree, known = shifted("nell-betae-tree", -0.25), shifted("nell-betae-best-known", 10)
    tree["shapes"]["1p"]["mrr"] = 50.0
    known["config"]["vectors"]["training"]["stored"] = "valid"
    for one in (q2p, beam, tree, known, shifted("nell-betae-best-retrained", 20)):
        write(tmp_path, one)
    nell = section(results_page(tmp_path), "NELL, betae")
    assert row(nell, "`nell-betae-q2p`")[:4] == ["1.00", "2.00", "**3.00**", "**4.00**"]
    assert row(nell, "`nell-betae-cqd-beam`")[:4] == ["0.50", "**2.50**", "**3.00**", "3.50"]
    assert row(nell, "`nell-betae-tree`")[:2] == ["**50.00**", "1.75"]
    for name in ("known", "retrained"):
        assert not any("**" in cell for cell in row(nell, f"`nell-betae-best-{name}`"))
    (words,) = [line for line in nell.splitlines() if line.startswith("Bold")]
    of_all, _, of_others = words.partition(" Without our own searches")
    assert "`tree` in 1p; `cqd-beam` in 2p; `q2p` and `cqd-beam` in 3p; `q2p` in 2i, 3i, pi" in of_all
    assert "`q2p` in 1p, 2i, 3i" in of_others
    assert "`cqd-beam` in 2p;" in of_others
    assert "(`tree`, `best`)" in of_others


def test_one_result_leads_nobody(tmp_path: Path) -> None:
    write(tmp_path, document())
    assert "Bold" not in results_page(tmp_path)


def test_both_kinds_of_hits_have_leaders(tmp_path: Path) -> None:
    first, second = shifted("nell-q2b-q2p", 0), shifted("nell-q2b-cqd-beam", 1)
    first["shapes"]["1p"]["best_hits@3"] = 99.0
    write(tmp_path, first)
    write(tmp_path, second)
    lines = section(results_page(tmp_path), "NELL, q2b").splitlines()
    ours = [line.split(" | ")[1] for line in lines if line.startswith(("| `nell", "| … best"))]
    assert ours == ["11.00", "**99.00**", "**12.00**", "22.00"]


def test_variants_have_tables_of_their_own(tmp_path: Path) -> None:
    for name in ("nell-betae-q2p", "nell-betae-q2p-dnf", "nell-betae-q2p-paper", "nell-betae-q2p-released"):
        write(tmp_path, document(name))
    page = results_page(tmp_path)
    assert "q2p-" not in section(page, "NELL, betae")
    presets, unions = (study_of(page, heading) for heading in ("Presets", "Unions"))
    for part, names in ((presets, ("q2p", "q2p-paper", "q2p-released")), (unions, ("q2p", "q2p-dnf"))):
        shown = [line.split("`")[1] for line in part.splitlines() if line.startswith("| `")]
        assert shown == [f"nell-betae-{name}" for name in names]
    assert row(presets, "`nell-betae-q2p-released`") == ["5,000 × 3,000", "2", "8.00", "9.00", "77.77", ""]
    assert "nell-betae-q2p-unions" in presets.partition("Not measured yet")[2]
    assert "nell-betae-q2p-de-morgan" in unions.partition("Not measured yet")[2]


def study_of(page: str, heading: str) -> str:
    return section(page, "Studies of Query2Particles").partition(f"### {heading}\n")[2].partition("\n### ")[0]


def test_particles_beside_the_paper(tmp_path: Path) -> None:
    """K is what the result says; gains are those of the best K, and of the paper's own rows."""
    base = shifted("fb15k-betae-q2p", 2)
    seeds = [{"mrr": dict.fromkeys(SHAPES, value)} for value in (10.0, 13.0)]
    write(tmp_path, {**base, "per_seed": seeds})
    for name, points in (("fb15k-betae-q2p-k1", 1.0), ("fb15k-betae-q2p-k3", 5.0), ("fb15k-betae-q2p-k4", 4.0)):
        write(tmp_path, shifted(name, points))
    write(tmp_path, shifted("fb15k-betae-q2p-paper-k1", 0))
    write(tmp_path, shifted("fb15k-betae-best", 90))
    part = study_of(results_page(tmp_path), "How many particles")
    means = [(1 + 4 + 8 + 10) / 4, (1 + 14) / 2]  # of 1p 2i 2u 2in, and of all
    expected = [number for one in (1, 4, 8, 10, *means) for number in (one + 5, one + 35)]
    assert row(part, "`fb15k-betae-q2p-k3`, K = 3") == ["2", *(f"{number:.2f}" for number in expected)]
    assert row(part, "`fb15k-betae-q2p`, K = 2")[:3] == ["2", "3.00", "33.00"]
    assert row(part, "`fb15k-betae-q2p-k5`, K = 5") == [""] * 13
    assert row(part, "the paper, K = 3")[-4:] == ["50.6", "32.8", "", ""]
    assert "fb15k-betae-best" not in part
    assert "- our default: +4.0 FULL (K = 3), +4.0 DIVR (K = 3), which is 51 % of the paper's gain" in part
    assert "- the paper: +1.2 FULL (K = 3), +7.8 DIVR (K = 3).\n" in part
    assert "- our runs of the preset paper" not in part, "there is one K"
    assert "standard deviation of 2.12 (`fb15k-betae-q2p`)" in part
    assert "`q2p reproduce fb15k-betae-q2p-k5 fb15k-betae-q2p-k6 fb15k-betae-q2p-paper`" in part
    assert f"]({PARTICLES_FIGURE})" in part


def test_without_particles_of_ours_there_is_no_figure(tmp_path: Path) -> None:
    assert particle_curves(read_results(tmp_path)) == {}
    part = study_of(results_page(tmp_path), "How many particles")
    assert PARTICLES_FIGURE not in part
    assert row(part, "the paper, K = 1")[1:3] == ["81.8", "44.8"]


def test_the_ablation_beside_the_paper(tmp_path: Path) -> None:
    high = shifted("fb15k-betae-q2p-k3", 5)
    high["shapes"]["2i"]["mrr"] = 0.0
    for one in (
        high,
        shifted("fb15k-betae-q2p", 2),
        shifted("fb15k-betae-q2p-k1", 50),
        shifted("fb15k-betae-q2p-paper-k1", 20),
        shifted("fb15k-betae-q2p-paper-k1-no-attention", 17.5),
    ):
        write(tmp_path, one)
    part = study_of(results_page(tmp_path), "Ablation")
    highest = row(part, "the highest of K = 2, 3, each column by itself")
    assert highest == ["6.00", "7.00", "6.00", "13.00", "15.00"], "2i is the default's; K = 1 is none of them"
    assert row(part, "`fb15k-betae-q2p`: our default")[2] == "6.00"
    assert row(part, "`fb15k-betae-gqe-operators`: no networks, GQE's operators") == [""] * 5
    assert row(part, "the paper: no networks, GQE's operators") == ["56.7", "16.1", "39.2", "20.1", ""]
    assert "1p −2.5, 2p −2.5, 2i −2.5, 2u −2.5, 2in −2.5; in the paper 1p −3.3, 2p −2.2, 2i −32.5" in part
    assert "`q2p reproduce fb15k-betae-gqe-operators`" in part


def test_what_a_leak_explains(tmp_path: Path) -> None:
    """Of 52.2 on NELL: 42.2 without a leak by the one definition, above it by the other."""
    clean, leaking = document("nell-q2b-q2p", "q2b/test"), document("nell-q2b-q2p-leaking", "q2b/test")
    clean["averages"]["epfo"] = {"hits@3": 42.2, "best_hits@3": 60.0}
    leaking["averages"]["epfo"] = {"hits@3": 49.7, "best_hits@3": 63.0}
    write(tmp_path, clean)
    before = study_of(results_page(tmp_path), "Trained on the test queries")
    assert "NELL, mean over a query's hard answers: 10.0 points below the paper; what a leak is worth is not" in before
    assert "q2p reproduce --leaking nell-q2b-q2p-leaking " in before
    write(tmp_path, leaking)
    part = study_of(results_page(tmp_path), "Trained on the test queries")
    assert row(part, "`nell-q2b-q2p-leaking`, *trained on these very queries*") == ["2", "49.70", "63.00"]
    assert "hard answers: 10.0 points below the paper; the leak adds 7.5, which is 75 % of the difference." in part
    assert "best hard answer: 7.8 points above the paper without any leak" in part
    assert "the leak adds 3.0." in part
    assert "FB15k, mean over a query's hard answers: nothing measured" in part
    assert "nell-q2b-q2p-leaking" not in part.partition("Not measured yet")[2]
    (tmp_path / "nell-q2b-q2p.json").unlink()
    alone = study_of(results_page(tmp_path), "Trained on the test queries")
    assert "NELL, mean over a query's hard answers: nothing measured to compare with the paper's 52.2" in alone


def test_results_that_other_queries_weighed_are_named(tmp_path: Path) -> None:
    """By the queries of the graph, where a result does not say."""
    for name, said in (("nell-betae-best", {}), ("nell-q2b-best", {}), ("fb15k-q2b-best", {"weighed_by": "q2b"})):
        one = document(name)
        one["config"] = {**one["config"], **said}
        write(tmp_path, one)
    page = results_page(tmp_path)
    assert "Made with other settings than the recipe has now: `nell-q2b-best` (weighed_by).\n" in page
    assert page.count("Made with other settings") == 1


def test_results_of_other_settings_are_named(tmp_path: Path) -> None:
    """Where a recipe has changed since; what was no setting then has not."""
    first, second, joint = (document(f"nell-betae-{name}") for name in ("q2p", "gqe", "best"))
    first["config"]["training"]["decay"] = 77.0
    first["config"]["training"]["validation"] = "a folder"
    del second["config"]["training"]["union_answers"]
    joint["config"]["links"]["model"]["n3"] = 77.0
    for one in (first, second, joint):
        write(tmp_path, one)
    page = results_page(tmp_path)
    words = "Made with other settings than the recipe has now: `nell-betae-q2p` (decay); `nell-betae-best` (n3).\n"
    assert words in section(page, "NELL, betae")


def test_the_spread_of_particles(tmp_path: Path) -> None:
    assert "How far apart" not in results_page(tmp_path)
    spread = {
        "method": "q2p",
        "graph": "NELL",
        "queries": "betae/test",
        "seed": 0,
        "config": {"model": {"particles": 3}},
        "averages": {
            "epfo": {"cosine": 0.25, "margin": 1.5, "effective": 2.25, "at_most": 2.75, "by_rank": [60.4, 29.6, 10.0]},
            "negation": {},
            "all": {},
        },
    }
    (tmp_path / "particles-nell.json").write_text(json.dumps(spread), "utf-8")
    name = "[q2p, NELL, betae/test, seed 0](../benchmarks/results/particles-nell.json)"
    part = study_of(results_page(tmp_path), "How far apart the particles are")
    assert row(part, name) == ["3", "EPFO", "0.250", "1.500", "2.25", "2.75", "60 30 10"]
    assert "![" not in part
    (tmp_path / "particles-nell.png").write_bytes(b"")
    assert "](../benchmarks/results/particles-nell.png)" in results_page(tmp_path)
    (tmp_path / "particles-nell.json").write_text("{}", "utf-8")
    with pytest.raises(UsageError, match="measure again"):
        results_page(tmp_path)


def test_the_figure_of_particles_is_current() -> None:
    """It describes itself by the numbers that it draws."""
    with Image.open(ROOT / "docs" / PARTICLES_FIGURE) as picture:
        drawn = json.loads(picture.info["Description"])
    curves = particle_curves(read_results(ROOT / "benchmarks" / "results"))
    assert drawn == json.loads(json.dumps(curves)), "run `make docs`"


def test_growth_is_drawn_from_all_benches_that_measure_it(tmp_path: Path) -> None:
    assert measured_growth(tmp_path) == {}
    for device, speed in (("cuda", 700.0), ("cpu", 2.0)):
        figures = {"10,000 entities, training queries/s": speed, "10,000 entities, tables GiB": 0.5, "other": 1.0}
        result = {"about": f"{device}, made-up graphs", "figures": figures}
        (tmp_path / f"bench-growth-{device}.json").write_text(json.dumps(result), "utf-8")
    of_each = {"training queries/s": 700.0, "tables GiB": 0.5}
    expected = {"GPU": {10_000: of_each}, "CPU": {10_000: {**of_each, "training queries/s": 2.0}}}
    assert measured_growth(tmp_path) == expected
    figures = {"import seconds": 60.0, "peak memory GiB": 3.5, "triples/s": 7.0}
    imported = {"about": "9 synthetic triples of 25,000 entities, TSV to graph folder", "figures": figures}
    (tmp_path / "bench-import-large-9-million.json").write_text(json.dumps(imported), "utf-8")
    expected["CPU"][25_000] = {"import s": 60.0, "import, peak memory GiB": 3.5}
    assert measured_growth(tmp_path) == expected
    plot_growth(expected, tmp_path / "growth.png", caption="both")
    with Image.open(tmp_path / "growth.png") as picture:
        assert json.loads(picture.info["Description"]) == json.loads(json.dumps(expected))
    (tmp_path / "bench-import-large-9-million.json").write_text(json.dumps({**imported, "figures": {}}), "utf-8")
    with pytest.raises(UsageError, match="lacks import seconds, peak memory GiB; measure again"):
        measured_growth(tmp_path)
    (tmp_path / "bench-growth-cpu.json").write_text("[]", "utf-8")
    with pytest.raises(UsageError, match="measure again"):
        measured_growth(tmp_path)


def test_the_figure_of_growth_is_current() -> None:
    with Image.open(ROOT / "docs" / GROWTH_FIGURE) as picture:
        drawn = json.loads(picture.info["Description"])
    assert drawn == json.loads(json.dumps(measured_growth(ROOT / "benchmarks" / "results"))), "run `make docs`"


def test_published_studies_have_the_means_of_their_rows() -> None:
    for k, values in study("particles").rows.items():
        for kind in ("FULL", "DIVR"):
            mean = sum(values[f"{shape} {kind}"] for shape in ("1p", "2i", "2u", "2in")) / 4
            assert values[f"mean {kind}"] == pytest.approx(mean, abs=0.08), (k, kind)
    assert study("ablation").rows["Q2P-1p"]["2i"] == study("particles").rows["1"]["2i FULL"]


def test_an_average_needs_its_whole_group() -> None:
    assert "epfo" not in figures_of(document(shapes=EPFO[:8]), "mrr")
    assert figures_of(document(), "best_hits@3")["epfo"] == 25.0


def test_without_results_the_page_says_what_makes_them(tmp_path: Path) -> None:
    page = results_page(tmp_path)
    for name in (
        "nell-betae-q2p",
        "fb15k-betae-q2p-released",
        "fb15k-237-q2b-q2p-leaking",
        "fb15k-betae-gqe-operators",
    ):
        assert name in page.partition("## Studies")[2]
    assert "`q2p reproduce fb15k-237-q2b-NAME`): q2p, " in page
    assert "## Cost" not in page


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
    pages = [tmp_path / "docs/speed.md", tmp_path / "docs/results.md"]
    assert write_report(tmp_path, tmp_path / "docs") == pages
    write(tmp_path, shifted("fb15k-betae-q2p", 0))
    assert write_report(tmp_path, tmp_path / "docs") == [*pages, tmp_path / "docs" / PARTICLES_FIGURE]
    assert (tmp_path / "docs" / PARTICLES_FIGURE).read_bytes().startswith(b"\x89PNG")


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
    marks = results._README
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
    assert whole == 36
