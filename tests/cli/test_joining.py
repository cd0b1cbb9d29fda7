"""`q2p join` and `q2p train --method best` as a person uses them, and what the other commands do with such a run."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calls import Call
from processes import start
from query2particles.answer import Method, Question, Reasoner
from query2particles.calibration import read_calibration
from query2particles.cli import app
from query2particles.cli.root import Stopped
from query2particles.config import Training
from query2particles.errors import RunError, UsageError, WorkloadError
from query2particles.graph.graph import Graph
from query2particles.joined import PARTS, Joined, open_run
from query2particles.methods import tree
from query2particles.methods.joint import FEATURES
from query2particles.run import JOINED, Run, is_run_folder
from query2particles.train import validation_set
from trainings import contents
from worlds import random_graph

SETTINGS = {
    "vectors.dimension": 16,
    "links.dimension": 16,
    "vectors.updates": 12,
    "links.updates": 20,
    "batch": 32,
    "validate_every": 1000,
    "validation_queries": 3,
    "warm_up": 3,
    "schedule": "constant",
    "vectors.mix": "1p:2,2i:1,2in:1",
}
FAMILIES = [
    "one hop",
    "several hops",
    "intersection",
    "several hops, intersection",
    "union",
    "several hops, union",
    "intersection, complement",
    "several hops, intersection, complement",
]
NO_PARTS = r"best asks the parts of a joined run: train one \(q2p train GRAPH --method best .*q2p join"
NO_PARTS_OF_IT = r"{} asks the parts of a joined run, which .* is not: train one .*--method best .*q2p join"
QUESTION = "e1.r0.r1 & !e2.r1"


def best(graph: Path, out: Path, *words: str, **changes: object) -> list[str | Path]:
    chosen = {**SETTINGS, **{key.replace("__", "."): value for key, value in changes.items()}}
    settings = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    return ["train", graph, "--method", "best", "--preset", "small", "--out", out, *settings, *words]


@pytest.fixture(scope="module", autouse=True)
def no_pictures() -> Iterator[None]:
    """Those of calibrations, which take longer than all the rest."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("query2particles.training.fit.plot_reliability", lambda *_, **__: None)
        yield


@pytest.fixture(scope="module")
def run(graph: Path) -> Path:
    """Trained by one command; not to be written to."""
    torch.set_num_threads(1)
    folder = graph.parent / "best"
    app(list(map(str, best(graph, folder))), standalone_mode=False)
    return folder


def test_one_command_trains_both_parts_and_joins_them(tmp_path: Path, graph: Path, call: Call) -> None:
    """The same command again does what is left to do: nothing but weighing the parts."""
    folder = tmp_path / "run"
    words = best(graph, folder, "--seed", "4")
    call(*words)
    assert f"{folder}/vectors: q2p on random-3, validation" in call.stdout
    assert f"{folder}/links: links on random-3, validation" in call.stdout
    table = call.stdout[call.stdout.index("MRR in percent on the validation queries that weighed the parts") :]
    for words_of_the_table in ("queries with", "together", *FAMILIES, *FEATURES):
        assert words_of_the_table.split(",")[0].split()[-1] in table
    assert f"Saved in {folder}. Next:  q2p evaluate {folder}" in call.stderr
    joined = open_run(folder)
    assert isinstance(joined, Joined)
    assert [run.config.method for run in (joined.vectors, joined.links)] == ["q2p", "links"]
    settings = [
        (one.training.updates, one.training.seed, one.preset) for one in (joined.vectors.config, joined.links.config)
    ]
    assert settings == [(12, 4, "small"), (20, 4, "small")]
    assert all(read_calibration(run) is not None for run in (joined, joined.vectors))
    assert read_calibration(joined.links) is None  # links alone answer no more than a hop

    before = {part: contents(folder / part) for part in PARTS}
    call(*words)
    assert f"{folder}/vectors is finished." in call.stderr
    assert f"{folder}/links is finished." in call.stderr
    assert "q2p on random-3" not in call.stdout
    assert {part: contents(folder / part) for part in PARTS} == before
    assert open_run(folder) == joined
    with pytest.raises(UsageError, match=r"vectors has other settings than these; name another folder \(--out\)"):
        call(*best(graph, folder, "--seed", "5"))
    with pytest.raises(UsageError, match="links has other settings than these"):
        call(*best(graph, folder, "--seed", "4", links__updates=30))
    assert open_run(folder) == joined


def test_minutes_choose_the_sizes_of_the_parts(tmp_path: Path, graph: Path, call: Call) -> None:
    """A complete run; the same command again has nothing to plan, and a setting that differs is refused."""
    folder = tmp_path / "run"
    words: list[str | Path] = ["train", graph, "--preset", "small", "--minutes", "0.2", "--out", folder]
    words += ["--set", "batch=32", "--set", "validation_queries=3", "--set", "particles=3"]
    call(*words)
    joined = open_run(folder)
    assert isinstance(joined, Joined)
    for config in (joined.vectors.config, joined.links.config):
        size = f"{config.method} with dimension {config.model.dimension} and {config.training.updates:,} updates"
        assert f"note: for 0.2 minutes on this machine: {size} of 32 queries" in call.stderr
    assert joined.vectors.config.model.particles == 3, "which links do not have"
    before = {part: contents(folder / part) for part in PARTS}
    call(*words)
    assert "on this machine" not in call.stderr
    assert call.stderr.count(" is finished.") == 2
    assert {part: contents(folder / part) for part in PARTS} == before
    with pytest.raises(UsageError, match="vectors has other settings than these"):
        call(*words, "--seed", "5")


def test_what_was_joined_as_json(tmp_path: Path, graph: Path, run: Path, call: Call) -> None:
    """Of all three ways to the same run."""
    document = json.loads((run / JOINED).read_text())
    again = shutil.copytree(run, tmp_path / "again")
    found = call.json(*best(graph, again))
    assert call.stderr.count(" is finished.") == 2
    parts = [run / part for part in PARTS]
    joined = call.json("join", *parts, "--out", tmp_path / "joined")
    in_place = shutil.copytree(run, tmp_path / "in place")
    for told, folder in (
        (found, again),
        (joined, tmp_path / "joined"),
        (call.json("join", *(in_place / part for part in PARTS), "--out", in_place), in_place),
    ):
        assert told["run"] == str(folder)
        assert [one["family"] for one in told["families"]] == FAMILIES
        fits = document["families"].items()
        for one, (family, fit) in zip(told["families"], fits, strict=True):
            assert list(one["weights"]) == list(FEATURES)
            weights = document["weights"][int(family)]
            assert list(one["weights"].values()) == pytest.approx(weights, abs=1e-4)
            assert one["mrr"] == pytest.approx(fit["mrr"], abs=0.01)
            assert one["alone"] == pytest.approx(fit["alone"], abs=0.01)
            assert one["queries"] == fit["queries"] > 0
            assert one["mrr"] >= max(one["alone"].values())
        assert json.loads((folder / JOINED).read_text()) == document
    assert (in_place / "vectors" / "last.safetensors").exists(), "parts in their place stay what they are"


def test_two_runs_are_joined(tmp_path: Path, run: Path, call: Call) -> None:
    parts = [shutil.copytree(run / part, tmp_path / part) for part in PARTS]
    call("join", *parts, "--out", tmp_path / "joined")
    assert "several hops, union" in " ".join(call.stdout.split())
    assert f"Saved in {tmp_path / 'joined'}. Next:  q2p evaluate {tmp_path / 'joined'}" in call.stderr
    for part in parts:
        shutil.rmtree(part)
    words = ("evaluate", "--limit", "3")
    assert call.json(*words, tmp_path / "joined")["shapes"] == call.json(*words, run)["shapes"]


def test_they_are_weighed_by_the_queries_that_are_named(tmp_path: Path, run: Path, graph: Path, call: Call) -> None:
    queries = tmp_path / "queries"
    call("sample", graph, "--split", "valid", "--shapes", "2i,2p", "--count", "2", "--out", queries)
    words = ("join", run / "vectors", run / "links", "--queries", queries, "--out", tmp_path / "joined")
    assert [(one["family"], one["queries"]) for one in call.json(*words)["families"]] == [
        ("several hops", 2),
        ("intersection", 2),
    ]
    call("sample", graph, "--shapes", "2i", "--count", "2", "--out", tmp_path / "test only")
    with pytest.raises(WorkloadError, match=r"no valid queries; q2p sample GRAPH --split valid --out .*test only"):
        call("join", run / "vectors", run / "links", "--queries", tmp_path / "test only", "--out", tmp_path / "new")


@pytest.mark.parametrize("setting", ["valid_edges", "all_edges"])
def test_parts_that_were_trained_again(tmp_path: Path, run: Path, graph: Path, call: Call, setting: str) -> None:
    """On more facts: they are joined as before, and nothing says how sure they are."""
    words = [word for key in (f"{setting}=true", "updates=4", "dimension=16") for word in ("--set", key)]
    parts = [tmp_path / part for part in PARTS]
    for folder, method in zip(parts, PARTS.values(), strict=True):
        call("train", graph, "--method", method, "--preset", "small", "--out", folder, *words)
    new = tmp_path / "new"
    with pytest.raises(UsageError, match=r"nothing is left to weigh it by; .*q2p join --as"):
        call("join", *parts, "--out", new)
    assert not new.exists()
    told = call.json("join", *parts, "--as", run, "--out", new)
    documents = [json.loads((folder / JOINED).read_text()) for folder in (run, new)]
    assert told == {"run": str(new), "as": str(run), "search": documents[0]["search"]}
    assert documents[1] == {**documents[0], "as": str(run.resolve())}
    assert "answers of this run will carry no probabilities: " in call.stderr
    assert not (new / "calibration.json").exists()
    call("join", *parts, "--as", run, "--out", tmp_path / "again")
    assert f"The search and the weights are those of {run}: nothing was fitted." in call.stderr
    assert (f"Next:  q2p evaluate {tmp_path / 'again'}\n" in call.stderr) == (setting == "valid_edges")
    found = call.json("evaluate", new, "--limit", "3", "--shapes", "1p,2in")
    assert found["config"]["training"][setting] is True
    assert ("warning" in call.stderr) == (setting == "all_edges")
    call("evaluate", new, "--limit", "3", "--shapes", "1p", "--split", "valid")
    assert "warning" in call.stderr
    assert "those that these queries ask for among them" in call.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("join VECTORS LINKS --out NEW --queries NEW", "no folder of queries .*q2p sample GRAPH --split valid --out"),
        ("join VECTORS LINKS --out NEW --as RUN --queries GRAPH", "--queries says what to fit them to: leave out one"),
        ("join VECTORS LINKS --out NEW --as VECTORS", "vectors is no joined run: q2p train GRAPH --method best"),
        ("join VECTORS LINKS --out RUN --as RUN", "is where the weights come from"),
        ("join LINKS VECTORS --out NEW", "is a run of links; name the other one first"),
        ("join VECTORS VECTORS --out NEW", "is no run of links, but of q2p: .*q2p train GRAPH --method links"),
        ("join RUN LINKS --out NEW", r"is a joined run: name the part that is meant, .*/vectors or .*/links"),
        ("join NEW LINKS --out NEW", "there is no run folder .*q2p train GRAPH --out "),
        ("join VECTORS NEW --out NEW", "there is no run folder .*q2p train GRAPH --method links --out "),
        ("join VECTORS LINKS --out NEW --as NEW", "there is no run folder .*q2p train GRAPH --method best --out "),
        ("join VECTORS LINKS --out FILE/new", "cannot be written"),
        ("train GRAPH --method best --out FILE/new", "cannot be written"),
        ("train GRAPH --method bset --out NEW", "no method 'bset' .* emql, and best, two of them joined"),
        ("train GRAPH --method guided --out NEW", "q2p train GRAPH --method best.*, which can be asked by .*guided"),
        ("bench search --run NEW", "there is no run folder .*q2p train GRAPH --method best --out "),
        ("evaluate RUN --method bset", "'bset' to evaluate; there are q2p, .*best, fast, guided; .*relax-and-count"),
        ("evaluate RUN --method exact", "'exact' to evaluate; there are q2p, "),
        ("evaluate VECTORS --method best", NO_PARTS_OF_IT.format("best")),
        ("evaluate VECTORS --method guided", NO_PARTS_OF_IT.format("guided")),
        ("evaluate VECTORS --method fast", NO_PARTS_OF_IT.format("fast")),
        ("evaluate GRAPH --method best", NO_PARTS_OF_IT.format("best")),
        ("join VECTORS LINKS --out VECTORS", r"is not empty: name a new folder \(--out\)"),
        ("join VECTORS LINKS --out FILE", r"is a file: name a new folder \(--out\)"),
        ("train GRAPH --method best --out VECTORS", r"is not empty: name a new folder \(--out\)"),
        ("train GRAPH --method best --out NEW --tensorboard", "leave out .* --tensorboard"),
        ("train --method best --out NEW", "of best, name a GRAPH and the run folder"),
        ("train GRAPH --method best", "of best, name a GRAPH and the run folder"),
        ("train GRAPH --method best --resume RUN", "the same command goes on with what an earlier one has left"),
        ("train GRAPH --method best --out NEW --config FILE", "of best, name a GRAPH .* and --set settings"),
        ("train GRAPH --method best --out NEW --all-edges", "needs facts to weigh its parts by.*: leave out"),
        ("train GRAPH --method best --out NEW --set valid_edges=true", "needs facts to weigh its parts by.*join --as"),
        ("train GRAPH --method best --out NEW --set links.all_edges=true", "needs facts to weigh its parts by"),
        ("train GRAPH --method best --out NEW --set vectors.leaked=x", "needs facts to weigh its parts by"),
        ("train GRAPH --method best --out NEW --unions dnf", "best answers unions its own way.*: leave out"),
        ("train GRAPH --method best --out NEW --set strange.x=1", r"strange\.x names no part: .*vectors\. or links\."),
        ("train GRAPH --method best --out NEW --set links.updats=1", "did you mean updates"),
        ("train GRAPH --method best --out NEW --preset paper", "links has no preset 'paper'"),
        ("train --resume RUN", "is a joined run: name the part that is meant"),
        ("export RUN --out NEW.tsv", "is a joined run: name the part that is meant"),
        ("evaluate RUN --set beam=3", "of best only stored can be set: --set changes a part, named by --method"),
        ("evaluate RUN --method gqe", "gqe cannot answer with what links has learned"),
        (
            "answer VECTORS e1.r0 --method best",
            NO_PARTS,
        ),
        ("answer GRAPH e1.r0 --method best", NO_PARTS),
    ],
)
def test_calls_that_are_wrong(tmp_path: Path, graph: Path, run: Path, call: Call, words: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    places = {"GRAPH": graph, "RUN": run, "NEW": tmp_path / "new", "FILE": tmp_path / "file"}
    places["FILE/new"] = tmp_path / "file" / "new"
    places |= {part.upper(): run / part for part in PARTS}
    with pytest.raises(UsageError, match=message):
        call(*(places.get(word, word) for word in words.split()))
    assert not (tmp_path / "new").exists()


def test_what_was_trained_in_a_folder_is_not_replaced(tmp_path: Path, run: Path, call: Call) -> None:
    """By copies of other parts; a folder of copies can be joined again, also where a join was cut short."""
    own = shutil.copytree(run, tmp_path / "own")
    other = shutil.copytree(run / "vectors", tmp_path / "vectors")
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="was trained where it is, and would be lost"):
        call("join", other, run / "links", "--out", own)
    assert {path: path.read_bytes() for path in own.rglob("*") if path.is_file()} == before
    call("join", other, run / "links", "--out", tmp_path / "joined")
    (tmp_path / "joined" / JOINED).unlink()
    call("join", other, run / "links", "--out", tmp_path / "joined")
    assert is_run_folder(tmp_path / "joined")


def test_a_graph_without_validation_facts_is_refused_before_anything_is_trained(tmp_path: Path, call: Call) -> None:
    (tmp_path / "facts.tsv").write_text("".join(f"e{n % 7}\tr{n % 3}\te{n % 5}\n" for n in range(90)), "utf-8")
    call("graph", "import", tmp_path / "facts.tsv", "--out", tmp_path / "graph")
    with pytest.raises(WorkloadError, match="has no validation facts to weigh the parts by"):
        call(*best(tmp_path / "graph", tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_runs_of_two_graphs(tmp_path: Path, run: Path, call: Call) -> None:
    random_graph(4, entities=30, relations=3, facts=300).save(tmp_path / "graph")
    words = [word for setting in ("updates=2", "dimension=8", "batch=8") for word in ("--set", setting)]
    call("train", tmp_path / "graph", "--method", "links", "--preset", "small", "--out", tmp_path / "links", *words)
    with pytest.raises(RunError, match="links was trained on another graph"):
        call("join", run / "vectors", tmp_path / "links", "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_evaluation_of_all_and_of_parts(run: Path, call: Call) -> None:
    assert len(call.json("evaluate", run, "--limit", "1")["shapes"]) == 14
    words = ("--limit", "4", "--shapes", "1p,2u,inp")
    together = call.json("evaluate", run, *words)
    assert together["method"] == together["config"]["method"] == "best"
    assert together["verdict"]["grade"] == "unknown"  # twelve queries
    seconds = [Run.open(run / part).cost()[0] for part in PARTS]
    assert together["train_seconds"] == pytest.approx(sum(seconds), abs=0.01)
    joined = open_run(run)
    assert isinstance(joined, Joined)
    search = [word for setting in joined.search.settings for word in ("--set", setting)]
    for method, part, own in (
        ("fast", "vectors", ()),
        ("q2p", "vectors", ()),
        ("tree", "links", ("--method", "tree", *search)),
        ("cqd-beam", "links", ("--method", "cqd-beam", "--set", "beam=3")),
        ("relax-and-count", "vectors", ("--method", "relax-and-count")),
    ):
        told = call.json("evaluate", run, *words, "--method", method, *own[2:])
        alone = call.json("evaluate", run / part, *words, *own)
        assert told["shapes"] == alone["shapes"]
        assert told["method"] == alone["method"]
        assert told["shapes"] != together["shapes"]
    call("evaluate", run, *words)
    assert "best" in call.stdout


def test_answers_of_all_and_of_the_vectors(run: Path, graph: Path, call: Call) -> None:
    reasoner = Reasoner.open(run)
    methods: tuple[Method, ...] = ("exact", "neural", "both", "best", "fast")

    def told(folder: Path, *words: str) -> Any:
        return call.json("answer", folder, QUESTION, "-k", "5", *words)

    found = {method: told(run, "--method", method) for method in methods}
    assert found == {method: reasoner.answer(Question(QUESTION, k=5, method=method)).as_json() for method in methods}
    assert told(run) == found["both"]
    answers = {method: one["answers"] for method, one in found.items()}
    assert answers["best"] == answers["both"] != answers["fast"]
    assert answers["fast"] == told(run / "vectors")["answers"] == told(run / "vectors", "--method", "fast")["answers"]
    assert answers["exact"] == told(graph)["answers"]
    assert all(one["probability"] is not None for one in (*answers["best"], *answers["fast"]))
    call("answer", run, QUESTION, "--assignments", "--explain", "-k", "2")
    assert "particle" not in call.stdout


def test_calibration_and_discoveries(tmp_path: Path, run: Path, call: Call) -> None:
    own = shutil.copytree(run, tmp_path / "run")
    before = (own / "calibration.json").read_bytes()
    (own / "calibration.json").unlink()
    call("calibrate", own)
    assert (own / "calibration.json").read_bytes() == before
    assert len(call.json("discover", own, "--relation", "r1", "-k", "3")) == 3


def test_a_signal_saves_and_the_same_command_goes_on(tmp_path: Path, graph: Path, call: Call) -> None:
    """That a training then ends as if left alone is proven of trainings themselves."""
    folder = tmp_path / "run"
    words = best(graph, folder, vectors__updates=150)
    with start(*words) as process:
        trace = folder / "vectors" / "trace.jsonl"
        until = time.monotonic() + 60
        while not (trace.exists() and trace.stat().st_size) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Stopped by SIGINT, in vectors; everything is saved. The same command goes on." in told
    assert "nothing was changed" not in told
    assert not is_run_folder(folder)
    stopped_after = Run.open(folder / "vectors").read_trace()[-1]["update"]
    assert stopped_after < 150
    call(*words)
    updates = [line["update"] for line in Run.open(folder / "vectors").read_trace()]
    assert updates == sorted(updates)
    assert (updates[-1], stopped_after in updates) == (150, True)
    assert is_run_folder(folder)


def test_a_signal_in_the_second_part(
    tmp_path: Path, graph: Path, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes before the first update; the first part, which was finished, is not trained again."""
    words = best(graph, tmp_path / "run")
    coming = [signal.SIGTERM]

    def interrupting(graph: Graph, training: Training) -> Any:
        if training.updates == SETTINGS["links.updates"] and coming:
            signal.raise_signal(coming.pop())
        return validation_set(graph, training)

    with monkeypatch.context() as patched:
        patched.setattr("query2particles.train.validation_set", interrupting)
        with pytest.raises(Stopped) as ended:
            call(*words)
    assert ended.value.code == 143
    assert "Stopped by SIGTERM, in links; everything is saved. The same command goes on." in capsys.readouterr().err
    assert not is_run_folder(tmp_path / "run")
    assert Run.open(tmp_path / "run" / "links").read_trace()[-1]["update"] == 1
    call(*words)
    assert f"{tmp_path / 'run' / 'vectors'} is finished." in call.stderr
    assert Run.open(tmp_path / "run" / "links").read_trace()[-1]["update"] == SETTINGS["links.updates"]
    assert is_run_folder(tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["fit_weights", "calibrate"])
def test_a_signal_while_the_parts_are_weighed_and_calibrated(
    moment: str,
    number: signal.Signals,
    tmp_path: Path,
    graph: Path,
    run: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before the run is joined, what it has is told from what is no run at all; the same command joins it."""
    folder = tmp_path / "run"
    for part in PARTS:
        shutil.copytree(run / part, folder / part)
    places = {
        "fit_weights": "query2particles.joined.fit_weights",
        "calibrate": "query2particles.training.fit.fit_probabilities",
    }
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patched:
        patched.setattr(places[moment], lambda *_, **__: signal.raise_signal(number))
        with pytest.raises(Stopped) as ended:
            call(*best(graph, folder))
    assert ended.value.code == 128 + number
    told = capsys.readouterr().err
    words = {
        "fit_weights": "the parts were weighed. The parts are saved; the same command",
        "calibrate": f"answers were given probabilities. The run is saved. To go on:  q2p calibrate {folder}",
    }
    assert f"Stopped by {number.name} while {words[moment]}" in told
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
    if moment == "fit_weights":
        for command in (("answer", folder, "e1.r0"), ("evaluate", folder), ("train", "--resume", folder)):
            with pytest.raises(UsageError, match="parts that are not joined yet: give the command that began it again"):
                call(*command)
    else:
        call("calibrate", folder)
        assert (folder / "calibration.json").is_file()
    call(*best(graph, folder))
    assert (folder / "calibration.json").is_file()


def test_answers_say_why_they_carry_no_probabilities(tmp_path: Path, run: Path, graph: Path, call: Call) -> None:
    def warned(folder: Path) -> str:
        return str(call.json("answer", folder, "e1.r0", "--only", "predicted")["warning"])

    own = shutil.copytree(run, tmp_path / "run")
    (own / "calibration.json").unlink()
    assert warned(own) == "guesses carry no probabilities: nothing was calibrated for these weights (q2p calibrate RUN)"
    again = tmp_path / "again"
    words = ["--set", "updates=4", "--set", "dimension=16", "--set", "valid_edges=true"]
    call("train", graph, "--method", "q2p", "--preset", "small", "--out", again, *words)
    assert "validation facts were trained on" in warned(again)


def test_what_the_beam_left_out_is_told(run: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the search alone and by all parts; and where assignments are shown. With a beam for all there is no word."""
    asked: list[str | Path] = ["evaluate", run, "--shapes", "2p", "--limit", "5"]
    told = "links are predicted from the truest alone"
    for words, cut in (([], False), (["--set", "beam=2"], True), (["--set", "beam=40"], False)):
        call(*asked, "--method", "tree", *words)
        assert (told in call.stderr) is cut
    shown: list[str | Path] = ["answer", run, "e1.r0.r1", "--assignments", "-k", "1"]
    call(*shown)
    assert told not in call.stderr
    monkeypatch.setattr(tree, "_LINKS", {"cpu": 1})
    monkeypatch.setattr(tree, "_FEWEST", 2)
    for command in (asked, shown):
        call(*command)
        assert "of more than 2 entities (beam; there were" in call.stderr
        assert told in call.stderr


def test_what_is_stored_when_parts_are_asked(run: Path, call: Call) -> None:
    """By the search and what it guides; vectors look nothing up, and say so."""
    asked: list[str | Path] = ["evaluate", run, "--shapes", "1p", "--limit", "5", "--set", "stored=valid"]
    for method in ("best", "tree", "guided"):
        found = call.json(*asked, "--method", method)
        assert found["config"]["training"]["stored"] == "valid"
        assert "note: validation facts are known" in call.stderr
    with pytest.raises(UsageError, match="q2p looks up no stored facts when it answers: leave out stored"):
        call(*asked, "--method", "fast")


def test_a_graph_with_other_facts_is_told_from_the_runs_own(tmp_path: Path, run: Path, call: Call) -> None:
    """What is asked for there may have been trained on here."""
    moved = random_graph(3, entities=40, relations=3, facts=380)
    moved.save(tmp_path / "graph")
    call("evaluate", run, "--graph", tmp_path / "graph", "--shapes", "1p", "--limit", "5")
    assert "warning: what these queries ask for may have been trained on: " in call.stderr
    assert "note: no verdict" in call.stderr
    call("evaluate", run, "--shapes", "1p", "--limit", "5")
    assert "warning" not in call.stderr
