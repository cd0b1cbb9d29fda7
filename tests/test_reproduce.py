"""Results by name: runs are shared, used again and resumed; the file is the evaluation of what was trained."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import query2particles.reproduce as verb
from processes import q2p
from query2particles import provenance
from query2particles.errors import RunError, UsageError
from query2particles.evaluate import evaluate
from query2particles.experiments.recipes import experiment, experiments
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Split
from query2particles.joined import Joined, join, open_run
from query2particles.presets import preset
from query2particles.query.algebra import EPFO, NEGATION
from query2particles.reproduce import Reproduced, Watch, compared, reproduce
from query2particles.run import Run
from query2particles.train import Progress
from query2particles.workload.benchmark import write_set
from query2particles.workload.selection import drawn_queries, stored_queries
from worlds import random_graph

TINY = ("dimension=8", "updates=20", "batch=32", "validate_every=5", "validation_queries=10", "warm_up=2", "rate=0.01")
BOTH = ("fb15k-237-betae-q2p", "fb15k-237-q2b-q2p")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of benchmark graphs in small: two graphs with query sets of the usual names."""
    data = tmp_path_factory.mktemp("data")
    folders: dict[str, dict[str, tuple[Split, ...]]] = {
        "FB15k-237": {"betae-resampled": ("valid", "test"), "q2b": ("valid", "test")},
        "NELL": {"betae-resampled": ("valid",), "betae": ("test",), "q2b": ("test",)},
    }
    for seed, (name, sets) in enumerate(folders.items()):
        graph = random_graph(seed, entities=50, relations=3, facts=500)
        graph.save(data / name)
        for queries, splits in sets.items():
            for split in splits:
                batch, labels = drawn_queries(graph, split, most=20, seed=len(queries))
                if queries == "q2b":
                    batch = {shape: batch[shape] for shape in list(batch)[:9]}
                write_set(data / name / queries, graph, split, batch, labels)
    return data


def made(data: Path, folder: Path, *names: str, **options: Any) -> Reproduced:
    options = {"seeds": (0, 1), "settings": TINY, **options}
    return reproduce(names or BOTH[:1], data=data, out=folder / "out", runs=folder / "runs", **options)


def stored(folder: Path, name: str = BOTH[0]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / f"{name}.json").read_text("utf-8"))
    return found


def figures(document: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on when, where and how fast a result was made."""
    return {key: value for key, value in document.items() if key not in ("train_seconds", "commit", "machine")}


def test_sets_share_runs_and_the_file_is_their_evaluation(world: Path, tmp_path: Path) -> None:
    result = made(world, tmp_path, *BOTH)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["fb15k-237-q2p"]
    assert [document["name"] for document in result.documents] == list(BOTH)
    for document, queries in zip(result.documents, ("betae-resampled", "q2b"), strict=True):
        assert document == stored(tmp_path, document["name"])
        assert document["queries"] == f"{queries}/test"
        assert document["seeds"] == [0, 1]
        assert document["graph"] == "FB15k-237"
        assert document["train_seconds"] > 0
        for number, entry in enumerate(document["per_seed"]):
            run = Run.open(tmp_path / "runs" / "fb15k-237-q2p" / f"seed-{number}")
            assert run.config.training.seed == number
            graph = run.graph()
            found = evaluate(run.model(graph), *stored_queries(graph, world / "FB15k-237" / queries, "test"))
            assert entry["mrr"] == {
                shape: round(100 * one.means["mrr"], 2) for shape, one in found.shapes.items() if one.queries
            }
        assert sum(own["answers"] for own in document["shapes"]["2p"]["hardness"].values()) > 0
        assert document["averages"]["epfo"]["hardness"].keys() >= {"1", "2"}
    config = result.documents[0]["config"]
    assert config["model"]["dimension"] == 8
    assert config["training"]["validation"] == "betae-resampled"
    assert "seed" not in config["training"]
    assert str(world) not in json.dumps(result.documents)


def test_a_finished_run_is_used_again(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(world, tmp_path, seeds=(0,))
    moved = tmp_path / "moved"
    shutil.copytree(world, moved)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it is trained already")

    monkeypatch.setattr(verb, "train", refuse)
    again = made(moved, tmp_path, *BOTH, seeds=(0,))
    assert again.documents[0] == first.documents[0]
    assert stored(tmp_path, BOTH[1])["seeds"] == [0]


def test_a_killed_call_loses_no_seed(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_alone = made(world, tmp_path / "alone")
    trained = verb.__dict__["train"]

    def die_at_the_second(run: Run, *given: Any, **options: Any) -> Any:
        if run.config.training.seed == 1:
            raise KeyboardInterrupt
        return trained(run, *given, **options)

    monkeypatch.setattr(verb, "train", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        made(world, tmp_path)
    assert stored(tmp_path)["seeds"] == [0]
    assert [entry["seed"] for entry in stored(tmp_path)["per_seed"]] == [0]
    monkeypatch.setattr(verb, "train", trained)
    made(world, tmp_path)
    assert figures(stored(tmp_path)) == figures(left_alone.documents[0])


def test_a_stopped_call_goes_on(world: Path, tmp_path: Path) -> None:
    left_alone = made(world, tmp_path / "alone", seeds=(0,))

    @contextmanager
    def interrupting(updates: int) -> Iterator[Any]:
        assert updates == 20

        def report(progress: Progress) -> None:
            if progress.update == 10:
                os.kill(os.getpid(), signal.SIGTERM)  # what runs in the background does not hear SIGINT

        yield report

    stopped = made(world, tmp_path, seeds=(0,), watch=Watch(training=interrupting))
    assert stopped == Reproduced((), signal.SIGTERM)
    assert not (tmp_path / "out").exists()
    assert made(world, tmp_path, seeds=(0,)).signal is None
    assert figures(stored(tmp_path)) == figures(left_alone.documents[0])


def test_what_is_watched(world: Path, tmp_path: Path) -> None:
    said: list[str] = []
    advanced: list[int] = []

    @contextmanager
    def bar(what: str, total: int) -> Iterator[Any]:
        assert what == "evaluating betae-resampled/test"
        yield advanced.append
        assert sum(advanced) == total

    made(world, tmp_path, seeds=(0,), watch=Watch(said.append, evaluation=bar))
    assert said[0].startswith("fb15k-237-q2p, seed 0: 20 updates")
    assert advanced


def test_runs_of_other_settings_are_left_alone(world: Path, tmp_path: Path) -> None:
    made(world, tmp_path, seeds=(0,))
    with pytest.raises(UsageError, match="--runs"):
        made(world, tmp_path, seeds=(0,), settings=[*TINY, "rate=0.02"])
    (tmp_path / "runs" / "fb15k-237-q2p" / "seed-0" / "trained.json").write_text("{}", "utf-8")
    with pytest.raises(RunError, match="remove it"):
        made(world, tmp_path, seeds=(0,))


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        (["nell-betae-q2"], {}, "did you mean nell-betae-q2p"),
        (["NELL-betae-q2p"], {}, "did you mean nell-betae-q2p"),
        (["?"], {}, "--list"),
        (["fb15k-betae-q2p"], {}, "needs FB15k"),
        (["nell-betae-q2p"], {"data": None}, "Q2P_DATA"),
        (["nell-betae-q2p"], {"seeds": ()}, "--seeds"),
        (["nell-betae-q2p"], {"seeds": (0, 0)}, "--seeds"),
        (["nell-betae-q2p"], {"seeds": (-1,)}, "--seeds"),
        (["nell-betae-q2p"], {"settings": ["all_edges=true"]}, "test facts"),
        (["nell-betae-q2p"], {"settings": ["dimensions=2"]}, "did you mean dimension"),
        (["nell-betae-q2p"], {"settings": [*TINY, "seed=0"]}, "--seeds"),
        (["nell-betae-q2p"], {"settings": [*TINY, " validation = elsewhere"]}, "validation"),
    ],
    ids=str,
)
def test_wrong_calls(world: Path, tmp_path: Path, names: list[str], options: dict[str, Any], words: str) -> None:
    given = {"data": world, "out": tmp_path, "runs": tmp_path / "runs", **options}
    with pytest.raises(UsageError, match=words):
        reproduce(names, **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", ["benchmarks/results", "benchmarks/../benchmarks/results", "elsewhere"])
def test_other_settings_make_no_official_result(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Nor through another spelling of the folder, or a link to it."""
    monkeypatch.chdir(tmp_path)
    Path("benchmarks/results").mkdir(parents=True)
    Path("elsewhere").symlink_to("benchmarks/results")
    with pytest.raises(UsageError, match="--out"):
        reproduce(BOTH[:1], data=world, out=Path(folder), seeds=(0,), settings=TINY)
    with pytest.raises(UsageError, match="--out"):
        reproduce(BOTH[:1], data=world, seeds=(0,), settings=TINY)
    assert not list(Path("benchmarks/results").iterdir())
    assert not Path("runs").exists()


def test_no_seed_of_a_result_is_lost(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(world, tmp_path)
    kept = stored(tmp_path)
    for fewer in ((0,), (1, 2)):
        with pytest.raises(UsageError, match=r"seeds? [01].*--out"):
            made(world, tmp_path, "nell-betae-q2p", BOTH[0], seeds=fewer)
    assert stored(tmp_path) == kept
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["fb15k-237-q2p"]  # refused before any work

    def die_at_the_third(run: Run, *_: Any, **__: Any) -> Any:
        assert run.config.training.seed == 2
        raise KeyboardInterrupt

    trained = verb.__dict__["train"]
    monkeypatch.setattr(verb, "train", die_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        made(world, tmp_path, seeds=(1, 2, 0))
    assert stored(tmp_path) == kept  # and not the first seed alone
    monkeypatch.setattr(verb, "train", trained)
    made(world, tmp_path, seeds=(1, 2, 0))
    assert stored(tmp_path)["seeds"] == [1, 2, 0]


def test_a_result_of_other_settings_is_replaced(world: Path, tmp_path: Path) -> None:
    made(world, tmp_path)
    other = [*TINY, "rate=0.02"]
    result = reproduce(BOTH[:1], data=world, out=tmp_path / "out", runs=tmp_path / "other", seeds=(0,), settings=other)
    assert (stored(tmp_path),) == result.documents
    (tmp_path / "out" / f"{BOTH[0]}.json").write_text("{", "utf-8")
    made(world, tmp_path, seeds=(0,))
    assert stored(tmp_path)["seeds"] == [0]


def test_the_commit_is_that_of_the_training(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("Q2P_COMMIT", "aaaa")
    first = made(world, tmp_path, seeds=(0,)).documents[0]
    assert first["commit"] == "aaaa"
    assert "evaluation_commit" not in first
    monkeypatch.setenv("Q2P_COMMIT", "bbbb")
    again = made(world, tmp_path, seeds=(0,)).documents[0]
    assert (again["commit"], again["evaluation_commit"]) == ("aaaa", "bbbb")
    more = made(world, tmp_path).documents[0]
    assert (more["commit"], more["evaluation_commit"]) == ("aaaa; bbbb", "bbbb")


def test_costs_are_those_of_the_whole_training(world: Path, tmp_path: Path) -> None:
    """The record of a finished run may get lost: looking at it again takes no time and no memory, training did."""
    made(world, tmp_path, seeds=(0,))
    run = tmp_path / "runs" / "fb15k-237-q2p" / "seed-0"
    lines = [json.loads(line) for line in (run / "trace.jsonl").read_text("utf-8").splitlines()]
    lines[0] |= {"seconds": 1234.5, "gpu_memory_gib": 7.25}
    (run / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    for record in (run / "trained.json", None):
        if record is not None:
            record.unlink()
        found = made(world, tmp_path, seeds=(0,)).documents[0]
        assert (found["train_seconds"], found["gpu_memory_gib"]) == (1234.5, 7.25)


def test_a_changed_checkout_is_called_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@example.org", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.delenv("Q2P_COMMIT", raising=False)
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "module.py"))
    assert provenance.commit() is None
    git("init")
    assert provenance.commit() is None  # nothing was committed yet
    (tmp_path / "module.py").write_text("1", "utf-8")
    git("add", "module.py")
    git("commit", "--message", "first")
    git("tag", "--annotate", "v1", "--message", "a tag is no commit")
    head = git("rev-parse", "HEAD")
    (tmp_path / "untracked.txt").write_text("1", "utf-8")
    assert provenance.commit() == head
    (tmp_path / "module.py").write_text("2", "utf-8")
    assert provenance.commit() == f"{head}-dirty"
    git("add", "module.py")
    assert provenance.commit() == f"{head}-dirty"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system confines no process to some cores")
def test_a_machine_has_the_cores_that_may_be_used() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert ", 1 cores," in provenance.machine()
    finally:
        os.sched_setaffinity(0, before)
    assert f", {len(before)} cores," in provenance.machine()


def test_the_table_of_experiments() -> None:
    known = experiments()
    for graph in ("nell", "fb15k", "fb15k-237"):
        assert {f"{graph}-{queries}-q2p" for queries in ("betae", "q2b")} <= known.keys()
        default = experiment(f"{graph}-betae-q2p").recipe.config
        assert default.preset == "default"
        own = {"dropout": preset().model.dropout, "residual": preset().model.residual}
        assert replace(default.model, **own) == preset().model  # but for these: d 400, K 2
        assert not set(default.training.mix) & {"ip", "pi", "2u", "up"}
        assert (default.training.union_answers, default.training.unions) == ("any", "native")
        released = experiment(f"{graph}-betae-q2p-unions").recipe.config.training
        assert released.union_share == pytest.approx(1 / 3)
        assert released.union_answers == "first"
    assert {one.queries for name, one in known.items() if name.startswith("nell-betae")} == {"betae"}
    assert {one.queries for name, one in known.items() if name.startswith("fb15k-betae")} == {"betae-resampled"}
    for name, one in known.items():
        assert one.recipe.validation == ("q2b" if "-q2b-best" in name else "betae-resampled")
        assert all(part.validation == "betae-resampled" for part in one.recipe.parts)
    for name in ("paper", "released"):
        of_graph, of_preset = experiment(f"fb15k-237-betae-q2p-{name}").recipe.config, preset("q2p", name)
        assert of_graph.model == of_preset.model
        assert of_graph.training.union_share == pytest.approx(of_preset.training.union_share)
    for name, rate, batch in (("paper", 3e-4, 4096), ("released", 7e-4, 3000)):
        config = experiment(f"nell-betae-q2p-{name}").recipe.config
        assert config.preset == name
        assert (config.training.rate, config.training.batch, config.training.smoothing) == (rate, batch, 0.7)
        assert config.model.dropout == 0.3


def test_what_trains_on_test_queries_has_to_be_meant(world: Path, tmp_path: Path) -> None:
    name = "fb15k-237-q2b-q2p-leaking"
    with pytest.raises(UsageError, match=f"{name} trains on the test queries .* say --leaking"):
        made(world, tmp_path, name)
    assert not (tmp_path / "runs").exists()
    (leaking,) = made(world, tmp_path, name, seeds=(0,), leaking=True).documents
    assert leaking["config"]["training"]["leaked"] == "q2b"
    assert str(world) not in json.dumps(leaking)
    assert "trained on these very queries" in compared(leaking).words.lower()
    run = Run.open(tmp_path / "runs" / "fb15k-237-q2p-leaking" / "seed-0")
    assert run.config.training.leaked == str((world / "FB15k-237" / "q2b").resolve())
    (again,) = made(world, tmp_path, name, seeds=(0,), leaking=True).documents
    assert again == leaking
    with pytest.raises(UsageError, match="recipe of its own"):
        made(world, tmp_path, BOTH[1], settings=["leaked=q2b"])
    for key in ("vectors.leaked", "links.leaked"):
        with pytest.raises(UsageError, match=f"{key} cannot be set here: .*recipe of its own"):
            made(world, tmp_path, "fb15k-237-q2b-best", settings=[f"{key}=q2b"])
    joint = {**leaking, "config": {"vectors": {"training": {}}, "links": leaking["config"]}}
    assert "trained on these very queries" in compared(joint).words.lower()


def test_names_that_train_nothing_take_no_settings_of_training(world: Path, tmp_path: Path) -> None:
    for name, setting in (
        ("fb15k-237-betae-tree-known", "updates=10"),
        ("fb15k-237-betae-best-known", "updates=10"),
        ("fb15k-237-betae-best-known", "vectors.rate=0.1"),
        ("fb15k-237-betae-q2p-dnf", "batch=16"),
    ):
        with pytest.raises(UsageError, match="that is how it was trained, which is over"):
            made(world, tmp_path, name, settings=[setting])
    with pytest.raises(
        UsageError, match="only asks what is trained for fb15k-237-best: leave out settings of its links"
    ):
        made(world, tmp_path, "fb15k-237-betae-best-known", settings=["links.n3=1"])
    assert not (tmp_path / "runs").exists()


def test_variants_for_some_graphs_only() -> None:
    known = experiments()
    for count in (1, 3, 4, 5, 6):
        config = experiment(f"fb15k-betae-q2p-k{count}").recipe.config
        assert config.model == replace(experiment("fb15k-betae-q2p").recipe.config.model, particles=count)
    assert {one.recipe.graph for name, one in known.items() if "-k1" in name} == {"FB15k"}
    ablated, whole = (experiment(f"fb15k-betae-q2p-paper-k1{name}").recipe.config for name in ("-no-attention", ""))
    assert replace(ablated.model, attention="separate") == whole.model
    assert (ablated.training, ablated.preset) == (whole.training, "paper")
    leaking = {name: one.recipe.config.training for name, one in known.items() if one.recipe.config.training.leaked}
    assert set(leaking) == {f"{graph}-q2b-q2p-leaking" for graph in ("nell", "fb15k", "fb15k-237")}


def document(**mrr: float) -> dict[str, Any]:
    shapes = {shape: {"queries": 1, "mrr": 50.0, **({"mrr": mrr[shape]} if shape in mrr else {})} for shape in EPFO}
    shapes |= {shape: {"queries": 1, "mrr": 1.0} for shape in NEGATION}
    averages = {"epfo": {"mrr": 25.51}, "negation": {"mrr": 5.99}}
    about = {"name": "nell-betae-q2p", "method": "q2p", "graph": "NELL", "queries": "betae/test", "seeds": [0, 1, 2]}
    return {**about, "config": {}, "shapes": shapes, "averages": averages}


def test_what_lies_above_the_paper_and_what_below() -> None:
    found = compared(document(**{"1p": 56.4, "2p": 15.2}))
    ours, paper, difference = (dict(zip(found.columns[1:], row[1:], strict=True)) for row in found.rows)
    assert list(ours) == [*EPFO, "epfo", *NEGATION, "negation"]
    assert (ours["epfo"], paper["epfo"], difference["epfo"]) == ("25.51", "25.5", "+0.01")
    assert difference["1p"] == "-0.10"
    above, _, below = found.words.partition("Below it:")
    assert " epfo" in above
    assert " 2p" not in found.words  # neither
    assert " 1p" in below
    assert " negation" in below
    assert "seeds 0, 1, 2" in found.title


def test_a_method_stands_beside_its_own_row() -> None:
    for method, epfo in (("gqe", "18.6"), ("q2b", "22.9"), ("betae", "24.6")):
        found = compared({**document(), "method": method})
        assert [row[0] for row in found.rows] == ["here", "the paper", "difference"]
        assert dict(zip(found.columns, found.rows[1], strict=True))["epfo"] == epfo
    unprinted = compared({**document(), "method": "links"})
    assert [row[0] for row in unprinted.rows] == ["here"]
    assert "Above the paper" not in unprinted.words


def test_what_a_row_counts_is_what_it_is_compared_by() -> None:
    """EmQL counts a query by its best answer, all others by the mean over its answers."""
    shapes = {shape: {"queries": 1, "hits@3": 10.0, "best_hits@3": 20.0} for shape in EPFO}
    averages = {"epfo": {"hits@3": 10.0, "best_hits@3": 20.0}}
    about = {**document(), "queries": "q2b/test", "shapes": shapes, "averages": averages}
    for method, ours, paper in (("emql", "20.00", "46.8"), ("cqd-beam", "10.00", "37.6")):
        found = compared({**about, "method": method})
        here, printed, _ = (dict(zip(found.columns, row, strict=True)) for row in found.rows)
        assert (here["epfo"], printed["epfo"]) == (ours, paper)


def test_a_set_drawn_anew_says_so() -> None:
    anew = compared({**document(), "graph": "FB15k", "queries": "betae-resampled/test"})
    assert "drawn anew" in anew.words
    assert "drawn anew" not in compared(document()).words


def test_the_command(world: Path, tmp_path: Path) -> None:
    options: list[str | Path] = [
        "--data",
        world,
        "--out",
        tmp_path / "out",
        "--runs",
        tmp_path / "runs",
        "--device",
        "cpu",
    ]
    options += [word for setting in TINY for word in ("--set", setting)]
    told = json.loads(q2p("reproduce", "nell-betae-q2p", "--seeds", "3", *options, "--json").stdout)
    assert told == stored(tmp_path, "nell-betae-q2p")
    shown = q2p("reproduce", "nell-betae-q2p", "nell-q2b-q2p", "--seeds", "3", *options)
    assert "the paper" in shown.stdout
    assert "nell-q2b-q2p: hits@3" in shown.stdout
    assert "updates" not in shown.stderr  # no second training


def test_wrong_commands() -> None:
    assert "nell-betae-q2p-paper" in q2p("reproduce", "--list").stdout
    assert "--list" in q2p("reproduce", code=2).stderr
    assert "whole numbers" in q2p("reproduce", "nell-betae-q2p", "--seeds", "one", code=2).stderr


@pytest.mark.benchmark
def test_on_the_benchmark_graph(data: Path, tmp_path: Path) -> None:
    """The real graph with some of its queries: after a few updates a model does better than chance."""
    folder = tmp_path / "data" / "FB15k-237"
    folder.mkdir(parents=True)
    for path in (data / "FB15k-237").iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path)
    graph = open_graph(folder)
    sets: dict[str, Split] = {"betae-resampled": "valid", "q2b": "test"}
    for queries, split in sets.items():
        batch, labels = stored_queries(graph, data / "FB15k-237" / queries, split, most=200)
        write_set(folder / queries, graph, split, batch, labels)
    settings = ["dimension=8", "updates=30", "batch=512", "validate_every=30", "validation_queries=50", "warm_up=5"]
    result = made(tmp_path / "data", tmp_path, BOTH[1], seeds=(0,), settings=[*settings, "rate=0.03"])
    (found,) = result.documents
    assert list(found["shapes"]) == list(EPFO)
    assert all(entry["queries"] == 200 for entry in found["shapes"].values())
    assert found["averages"]["epfo"]["mrr"] > 0.3  # untrained: 0.07
    assert found["averages"]["negation"] == {}


@pytest.mark.parametrize(
    ("asked", "folder", "name"), [("betae", "betae-resampled", "best"), ("q2b", "q2b", "best-q2b")]
)
def test_a_joint_reasoner_is_weighed_by_the_queries_of_its_set(
    asked: str, folder: str, name: str, world: Path, tmp_path: Path
) -> None:
    (document,) = made(world, tmp_path, f"fb15k-237-{asked}-best", seeds=(0,)).documents
    joined = json.loads((tmp_path / "runs" / f"fb15k-237-{name}" / "seed-0" / "joined.json").read_text("utf-8"))
    assert document["searches"] == [joined["search"]]
    assert document["config"]["weighed_by"] == folder
    weighed, *parts = (tmp_path / "runs" / f"fb15k-237-{part}" / "seed-0" for part in (name, "q2p", "links"))
    vectors, links = map(Run.open, parts)
    graph = vectors.graph()
    validation = stored_queries(graph, world / "FB15k-237" / folder, "valid", most=10)
    again, _ = join(tmp_path / "again", vectors, links, graph, validation)
    own = open_run(weighed)
    assert isinstance(own, Joined)
    assert (own.weights, own.search) == (again.weights, again.search)


def test_a_joined_run_of_other_parts_is_not_taken_for_this_one(world: Path, tmp_path: Path) -> None:
    name = "fb15k-237-betae-best"
    made(world, tmp_path, name, seeds=(0,))
    shutil.rmtree(tmp_path / "runs" / "fb15k-237-q2p")
    with pytest.raises(UsageError, match=r"was joined from other runs than .*fb15k-237-q2p.*or remove it"):
        made(world, tmp_path, name, seeds=(0,), settings=(*TINY, "vectors.updates=9"))


def test_seeds_of_a_result_from_before_there_was_a_setting_are_not_lost(world: Path, tmp_path: Path) -> None:
    name = "fb15k-237-betae-best"
    (document,) = made(world, tmp_path, name, seeds=(0, 1)).documents
    for part in ("vectors", "links"):
        del document["config"][part]["training"]["valid_edges"]
    (tmp_path / "out" / f"{name}.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match="seeds 1 of the same settings"):
        made(world, tmp_path, name, seeds=(0,))


def test_seeds_of_a_result_that_does_not_say_what_weighed_are_not_lost(world: Path, tmp_path: Path) -> None:
    name = "fb15k-237-betae-best"
    (document,) = made(world, tmp_path, name, seeds=(0, 1)).documents
    del document["config"]["weighed_by"]
    (tmp_path / "out" / f"{name}.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match="seeds 1 of the same settings"):
        made(world, tmp_path, name, seeds=(0,))


def test_the_queries_that_select_parts_are_looked_for_before_any_work(world: Path, tmp_path: Path) -> None:
    data = shutil.copytree(world, tmp_path / "data")
    shutil.rmtree(data / "FB15k-237" / "betae-resampled")
    with pytest.raises(UsageError, match=r"fb15k-237-q2b-best needs FB15k-237.betae-resampled"):
        made(data, tmp_path, "fb15k-237-q2b-best")


def test_another_workload_of_the_same_name_is_another(world: Path, tmp_path: Path) -> None:
    graph = open_graph(world / "FB15k-237")
    drawn = drawn_queries(graph, "train", most=20, seed=0)
    for place in ("one", "two"):
        write_set(tmp_path / place / "queries", graph, "train", *drawn)
    settings = [(*TINY, f"workload={tmp_path / place / 'queries'}") for place in ("one", "two")]
    (document,) = made(world, tmp_path, seeds=(0,), settings=settings[0]).documents
    assert document["config"]["training"]["workload"] == "queries"
    with pytest.raises(UsageError, match="was trained with other settings"):
        made(world, tmp_path, seeds=(0,), settings=settings[1])


RETRAINED = "fb15k-237-betae-best-retrained"


@pytest.fixture(scope="module")
def retrained(world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One seed of a joint reasoner whose parts were trained again; not to be written to."""
    folder = tmp_path_factory.mktemp("retrained")
    (document,) = made(world, folder, RETRAINED, seeds=(0,)).documents
    return folder, document


def test_recipes_whose_parts_are_trained_again() -> None:
    for graph in ("nell", "fb15k", "fb15k-237"):
        for queries, name in (("betae", "best"), ("q2b", "best-q2b")):
            default, again = (experiment(f"{graph}-{queries}-best{variant}") for variant in ("", "-retrained"))
            recipe = again.recipe
            assert recipe.weights_of == default.recipe
            assert recipe.name == f"{graph}-{name}-retrained"
            assert [part.name for part in recipe.parts] == [f"{graph}-{part}-retrained" for part in ("q2p", "links")]
            for part, before in zip(recipe.parts, default.recipe.parts, strict=True):
                training = replace(before.config.training, valid_edges=True)
                assert part.config == replace(before.config, training=training)
            assert again.config == recipe.config == recipe.parts[0].config
            assert (again.queries, recipe.validation) == (default.queries, default.recipe.validation)


def test_parts_that_are_trained_again_take_the_weights_of_before(
    world: Path, tmp_path: Path, retrained: tuple[Path, dict[str, Any]]
) -> None:
    folder, document = retrained
    names = {f"fb15k-237-{part}{variant}" for part in ("q2p", "links", "best") for variant in ("", "-retrained")}
    assert {path.name for path in (folder / "runs").iterdir()} == names
    first, again = (open_run(folder / "runs" / f"fb15k-237-best{name}" / "seed-0") for name in ("", "-retrained"))
    assert isinstance(first, Joined)
    assert isinstance(again, Joined)
    assert (again.weights, again.search) == (first.weights, first.search)
    for part in ("vectors", "links"):
        run: Run = getattr(again, part)
        assert run.config.training.valid_edges
        assert not getattr(first, part).config.training.valid_edges
        assert not any("validation" in line for line in run.read_trace())
        assert document["config"][part]["training"]["valid_edges"] is True
    assert document["config"]["weighed_by"] == "betae-resampled"
    seconds = sum(run.cost()[0] for run in (first, again))
    assert document["train_seconds"] == pytest.approx(seconds, abs=0.01)
    graph = again.graph()
    batch, labels = stored_queries(graph, world / "FB15k-237" / "betae-resampled", "test")
    found = evaluate(again.model(graph), batch, labels).average("all")["mrr"]
    assert document["averages"]["all"]["mrr"] == pytest.approx(100 * found, abs=0.01)
    assert "Validation facts were known" in compared(document).words
    (default,) = made(world, tmp_path, "fb15k-237-betae-best", seeds=(0,)).documents
    assert "Validation facts were known" not in compared(default).words


def test_what_is_trained_again_is_used_again(
    world: Path, tmp_path: Path, retrained: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By other query sets, and where only the last step of a joined run is missing; the default comes with it."""
    folder, document = retrained
    own = shutil.copytree(folder, tmp_path / "own")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it is trained already")

    monkeypatch.setattr(verb, "train", refuse)
    for name in ("best", "best-retrained"):
        (own / "runs" / f"fb15k-237-{name}" / "seed-0" / "joined.json").unlink()
    again, _ = made(world, own, RETRAINED, "fb15k-237-betae-best", seeds=(0,)).documents
    assert again == document
    made(world, own, "fb15k-237-q2b-best-retrained", seeds=(0,))
    joined = [open_run(own / "runs" / f"fb15k-237-best-q2b{name}" / "seed-0") for name in ("", "-retrained")]
    weights = [run.weights for run in joined if isinstance(run, Joined)]
    assert weights[0] == weights[1]


def test_a_stopped_second_round_goes_on(
    world: Path, tmp_path: Path, retrained: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, document = retrained
    trained = verb.__dict__["train"]

    def stop_at_the_last(run: Run, *given: Any, **options: Any) -> Any:
        how = trained(run, *given, **options)
        return replace(how, signal=signal.SIGTERM) if run.folder.parent.name == "fb15k-237-links-retrained" else how

    with monkeypatch.context() as patched:
        patched.setattr(verb, "train", stop_at_the_last)
        assert made(world, tmp_path, RETRAINED, seeds=(0,)) == Reproduced((), signal.SIGTERM)
    assert not (tmp_path / "out").exists()
    made(world, tmp_path, RETRAINED, seeds=(0,))
    assert figures(stored(tmp_path, RETRAINED)) == figures(document)


def test_a_retrained_run_of_other_parts_or_weights_is_not_taken_for_this_one(
    world: Path, tmp_path: Path, retrained: tuple[Path, dict[str, Any]]
) -> None:
    own = shutil.copytree(retrained[0], tmp_path / "own")
    path = own / "runs" / "fb15k-237-best-retrained" / "seed-0" / "joined.json"
    before = path.read_text("utf-8")
    changed = json.loads(before)
    changed["weights"][0][0] += 1
    path.write_text(json.dumps(changed))
    with pytest.raises(UsageError, match=r"best-retrained.seed-0 has other weights than .*best.seed-0.*or remove it"):
        made(world, own, RETRAINED, seeds=(0,))
    path.write_text(before)
    shutil.rmtree(own / "runs" / "fb15k-237-q2p-retrained")
    weights = own / "runs" / "fb15k-237-best-retrained" / "seed-0" / "vectors" / "best.safetensors"
    shutil.copyfile(own / "runs" / "fb15k-237-q2p" / "seed-0" / "best.safetensors", weights)
    with pytest.raises(UsageError, match=r"was joined from other runs than .*q2p-retrained.*or remove it"):
        made(world, own, RETRAINED, seeds=(0,))


def test_validation_facts_may_be_trained_on_where_nothing_weighs(world: Path, tmp_path: Path) -> None:
    (document,) = made(world, tmp_path, seeds=(0,), settings=(*TINY, "valid_edges=true")).documents
    assert document["config"]["training"]["valid_edges"] is True
    with pytest.raises(UsageError, match="nothing to weigh the parts by: leave it out, and name GRAPH-SET-best-retr"):
        made(world, tmp_path, "fb15k-237-betae-best", seeds=(0,), settings=(*TINY, "links.valid_edges=true"))


def test_a_joint_reasoner_is_made_of_the_runs_of_its_parts(world: Path, tmp_path: Path) -> None:
    """Which are those that their own names make; its result says what both were, and lost seeds are noticed."""
    names = ("fb15k-237-betae-best", "fb15k-237-q2b-best")
    (document, other) = made(world, tmp_path, *names, seeds=(0, 1)).documents
    assert document["method"] == other["method"] == "best"
    assert document["config"]["vectors"]["method"] == "q2p"
    assert document["config"]["links"]["method"] == "links"
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "fb15k-237-q2p",
        "fb15k-237-links",
        "fb15k-237-best",
        "fb15k-237-best-q2b",
    }
    runs = [open_run(tmp_path / "runs" / "fb15k-237-best" / f"seed-{seed}") for seed in (0, 1)]
    graph = runs[0].graph()
    batch, labels = stored_queries(graph, world / "FB15k-237" / "betae-resampled", "test")
    found = [evaluate(run.model(graph), batch, labels).average("all")["mrr"] for run in runs]
    assert document["averages"]["all"]["mrr"] == pytest.approx(100 * sum(found) / 2, abs=0.01)
    again = made(world, tmp_path, names[0], seeds=(0, 1)).documents[0]
    assert figures(again) == figures(document)
    with pytest.raises(UsageError, match="seeds 1 of the same settings"):
        made(world, tmp_path, names[0], seeds=(0,))
    with pytest.raises(UsageError, match="names no part"):
        made(world, tmp_path, names[0], settings=("tree.beam=3",))
