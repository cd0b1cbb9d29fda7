"""A run folder: what is saved comes back, what is damaged or foreign is refused with a reason, nothing good is lost."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from processes import ENVIRONMENT
from query2particles.checkpoint import Saved, State
from query2particles.config import Config, build, configured
from query2particles.errors import RunError, UsageError
from query2particles.graph.graph import Graph
from query2particles.presets import preset
from query2particles.run import Run
from worlds import random_graph

ABOUT = {"about": "{}"}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(1, entities=12, relations=2, facts=30)


@pytest.fixture
def config() -> Config:
    return configured(preset(), None, ["dimension=4", "updates=10", "schedule=constant"])


@pytest.fixture
def run(tmp_path: Path, config: Config, graph: Graph) -> Run:
    graph.save(tmp_path / "graph")
    return Run.create(tmp_path / "run", config, graph, str(tmp_path / "graph"))


def parts(run: Run, graph: Graph, seed: int) -> Saved:
    """A model, its optimiser after two steps, and a generator."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = build(run.config, graph)
        optimiser = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = torch.randn(parameter.shape) if number else None  # the first never had a gradient
            optimiser.step()
    return Saved(model, optimiser, generator)


STATE = State(7, 1.5, {"all": 1.0}, {"all": 2.0, "epfo": 2.5}, 4, 3)


@pytest.fixture
def saved(run: Run, graph: Graph) -> Run:
    made = parts(run, graph, 1)
    run.save_best(made.model, STATE)
    run.save_last(made, STATE)
    return run


def test_what_is_saved_comes_back(saved: Run, graph: Graph) -> None:
    first_parts, other_parts = parts(saved, graph, 1), parts(saved, graph, 2)
    model, other = first_parts.model, other_parts.model
    own = torch.get_rng_state()
    assert saved.restore(other_parts) == STATE
    assert torch.equal(torch.get_rng_state(), own)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
    assert torch.equal(first_parts.generator.get_state(), other_parts.generator.get_state())
    first, second = first_parts.optimiser.state_dict(), other_parts.optimiser.state_dict()
    assert first["param_groups"] == second["param_groups"]
    assert first["state"].keys() == second["state"].keys()
    for number, moments in first["state"].items():
        assert all(torch.equal(value, second["state"][number][name]) for name, value in moments.items())
        assert {value.dtype for value in second["state"][number].values()} == {torch.float32}
    loaded = saved.model(graph)
    assert not loaded.training
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), loaded.parameters(), strict=True))
    assert saved.saved() == ("cpu", STATE)


def test_torch_random_numbers_come_back(run: Run, graph: Graph) -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        run.save_last(parts(run, graph, 1), STATE)
        expected = torch.rand(3)
        torch.manual_seed(6)
        run.restore(parts(run, graph, 2))
        assert torch.equal(torch.rand(3), expected)


def test_loading_a_model_draws_no_random_numbers(saved: Run, graph: Graph) -> None:
    before = torch.get_rng_state()
    saved.model(graph)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_reads_back_as_it_was(run: Run, config: Config, graph: Graph) -> None:
    found = Run.open(run.folder)
    assert found == run
    assert found.config == config
    assert found.graph().fingerprint == graph.fingerprint
    longer = found.with_config(replace(config, training=replace(config.training, updates=11)))
    assert Run.open(run.folder) == longer != run


def test_before_anything_is_saved(run: Run, graph: Graph) -> None:
    assert run.restore(parts(run, graph, 1)) == State()
    assert run.saved() is None
    assert run.read_trace() == []
    assert run.cost() == (0.0, 0.0)
    with pytest.raises(RunError, match="nothing was saved yet"):
        run.model(graph)


def test_a_folder_that_holds_something_is_refused(saved: Run, config: Config, graph: Graph) -> None:
    with pytest.raises(UsageError, match=r"not empty: resume it with q2p train --resume .*/run"):
        Run.create(saved.folder, config, graph, "atlas")
    for name in ("letter", "config.json"):
        other = saved.folder / f"with-{name}"
        other.mkdir()
        (other / name).write_text('{"dear": "reader"}')
        with pytest.raises(UsageError, match=r"not empty: .*name a new folder"):
            Run.create(other, config, graph, "atlas")
        assert (other / name).read_text() == '{"dear": "reader"}'
    with pytest.raises(UsageError, match="is a file: name a new folder"):
        Run.create(saved.folder / "with-letter" / "letter", config, graph, "atlas")


def test_settings_that_do_not_go_together_leave_no_folder(tmp_path: Path, config: Config, graph: Graph) -> None:
    with pytest.raises(UsageError, match="keep=sample"):
        Run.create(tmp_path / "new", configured(preset(), None, ["attention=none"]), graph, "atlas")
    assert not (tmp_path / "new").exists()


def test_a_run_without_a_save_may_be_made_anew(run: Run, config: Config, graph: Graph) -> None:
    (run.folder / ".last.safetensors.partial-999999999").write_bytes(b"killed")
    with run.trace() as trace:
        trace.write(update=3, loss=1)
    other = configured(config, None, ["batch=3"])
    with run.held(), pytest.raises(RunError, match="another process is training"):
        Run.create(run.folder, other, graph, "atlas")
    assert Run.open(run.folder).config == config
    Run.create(run.folder, other, graph, "atlas")
    assert Run.open(run.folder).config == other


def test_a_run_that_was_killed_while_it_was_made(tmp_path: Path, config: Config, graph: Graph) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.partial-999999999").write_text("{")
    Run.create(tmp_path / "run", config, graph, "atlas")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "config.json"]


def test_folders_of_queries_must_be_there(tmp_path: Path, config: Config, graph: Graph) -> None:
    with pytest.raises(UsageError, match=r"there is no folder 'nowhere' of queries \(workload\)"):
        Run.create(tmp_path / "run", configured(config, None, ["workload=nowhere"]), graph, "atlas")
    assert not (tmp_path / "run").exists()


def test_what_is_no_run(tmp_path: Path, run: Run) -> None:
    with pytest.raises(UsageError, match="there is no run folder"):
        Run.open(tmp_path / "nothing")
    with pytest.raises(UsageError, match="there is no run folder"):
        Run.open(run.folder / "config.json")
    with pytest.raises(RunError, match=r"it has no config\.json"):
        Run.open(tmp_path)


def test_a_run_of_another_graph(saved: Run, tmp_path: Path) -> None:
    foreign = random_graph(2, entities=13)
    foreign.save(tmp_path / "foreign")
    with pytest.raises(RunError, match=r"was trained on another graph.*name the graph that it was trained on"):
        saved.graph(str(tmp_path / "foreign"))
    with pytest.raises(RunError, match="was trained on another graph"):
        saved.model(foreign)
    other = Run.create(tmp_path / "other", saved.config, foreign, str(tmp_path / "foreign"))
    (other.folder / "best.safetensors").write_bytes((saved.folder / "best.safetensors").read_bytes())
    with pytest.raises(RunError, match="holds weights for another graph"):
        other.model(foreign)


def test_a_graph_that_is_gone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "graph").rename(tmp_path / "moved")
    with pytest.raises(
        RunError, match=r"the graph of .*/run cannot be opened: .*/graph does not exist.*--graph GRAPH.*GRAPH --resume"
    ):
        run.graph()
    assert run.graph(str(tmp_path / "moved")).fingerprint == run.fingerprint
    with pytest.raises(UsageError, match="nowhere does not exist"):
        run.graph("nowhere")


def test_the_facts_of_the_graph_are_written_down(run: Run, graph: Graph) -> None:
    assert run.facts == (graph.facts()["train"], sum(graph.facts().values()))
    run.check_facts(graph)
    document = json.loads((run.folder / "config.json").read_text())
    assert tuple(document["graph"].pop("facts").values()) == run.facts
    (run.folder / "config.json").write_text(json.dumps(document))
    older = Run.open(run.folder)  # written before there was such a thing
    assert older.facts is None
    older.check_facts(graph)
    assert Run.open(older.with_config(older.config).folder).facts is None
    more = random_graph(1, entities=12, relations=2, facts=60)
    assert more.fingerprint == graph.fingerprint
    with pytest.raises(RunError, match="has other facts"):
        run.check_facts(more)
    run.check(more)


def test_a_run_is_removed_as_a_whole_or_not_at_all(saved: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (saved.folder / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"mine\.txt"):
        saved.remove()
    assert (saved.folder / "last.safetensors").exists()

    def refuse(**_: object) -> None:
        raise PermissionError("nothing can be made beside it, nor has to be")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    saved.remove(also=("mine.txt",))
    assert list(saved.folder.iterdir()) == []


def test_a_run_of_another_version(saved: Run, graph: Graph) -> None:
    document = json.loads((saved.folder / "config.json").read_text())
    (saved.folder / "config.json").write_text(json.dumps({**document, "format": 2, "version": "9.9"}))
    with pytest.raises(RunError, match=r"run format 2 \(query2particles 9\.9\), this version reads 1; train it again"):
        Run.open(saved.folder)
    _resave(saved, "best.safetensors", about=lambda about: {**about, "format": 2})
    with pytest.raises(RunError, match="is in format 2, this version reads 1"):
        saved.model(graph)


def test_a_model_of_other_settings(saved: Run, graph: Graph) -> None:
    wider = saved.with_config(configured(saved.config, None, ["dimension=5"]))
    with pytest.raises(RunError, match=r"do not fit config\.json beside them"):
        wider.model(graph)


def _resave(
    run: Run,
    name: str,
    about: Callable[[dict[str, Any]], Any] = lambda about: about,
    tensors: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = lambda tensors: tensors,
) -> None:
    """The same file with something else in it."""
    from safetensors import safe_open

    path = run.folder / name
    with safe_open(path, framework="pt") as file:
        document = json.loads(file.metadata()["about"])
    save_file(tensors(load_file(path)), path, {"about": json.dumps(about(document))})


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 100, -1])
@pytest.mark.parametrize("name", ["best.safetensors", "last.safetensors"])
def test_a_checkpoint_that_was_cut(saved: Run, graph: Graph, name: str, cut: int) -> None:
    path = saved.folder / name
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(RunError, match=rf"{name} cannot be read .* beside it may be whole"):
        saved.model(graph) if name.startswith("best") else saved.restore(parts(saved, graph, 2))


@pytest.mark.parametrize(
    "content", [b"garbage" * 1000, b"\xff" * 64, b"\x02" + bytes(7) + b"{}", b"\x04" + bytes(7) + b"null"]
)
def test_a_checkpoint_that_is_none(saved: Run, graph: Graph, content: bytes) -> None:
    for name in ("best.safetensors", "last.safetensors"):
        (saved.folder / name).write_bytes(content)
    for use in (lambda: saved.model(graph), lambda: saved.restore(parts(saved, graph, 2)), saved.saved):
        with pytest.raises(RunError, match="cannot be read"):
            use()


@pytest.mark.parametrize(
    "document", ["null", "[]", "3", '"text"', "{", "", "[" * 3000, "NaN", json.dumps({"format": 1, "graph": [1]})]
)
def test_hostile_metadata(saved: Run, graph: Graph, document: str) -> None:
    for name in ("best.safetensors", "last.safetensors"):
        save_file(load_file(saved.folder / name), saved.folder / name, {"about": document})
    for use in (lambda: saved.model(graph), lambda: saved.restore(parts(saved, graph, 2)), saved.saved):
        with pytest.raises(RunError):
            use()


HOSTILE_STATES: list[Any] = [
    None,
    [],
    {},
    {**asdict(STATE), "update": "7"},
    {**asdict(STATE), "update": True},
    {**asdict(STATE), "update": -1},
    {**asdict(STATE), "waited": 1.5},
    {**asdict(STATE), "seconds": None},
    {**asdict(STATE), "seconds": float("nan")},
    {**asdict(STATE), "best": {"epfo": 1.0}},
    {**asdict(STATE), "best": {"all": "1"}},
    {**asdict(STATE), "latest": ["all"]},
    {**asdict(STATE), "latest": "all"},
    {**asdict(STATE), "latest": 5},
    {**asdict(STATE), "more": 5},
]


@pytest.mark.parametrize("state", HOSTILE_STATES, ids=repr)
def test_hostile_states(saved: Run, graph: Graph, state: Any) -> None:
    _resave(saved, "last.safetensors", about=lambda about: {**about, "state": state})
    with pytest.raises(RunError, match=r"last\.safetensors cannot be read"):
        saved.restore(parts(saved, graph, 2))


HOSTILE_TENSORS: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
    "a weight is missing": lambda found: {name: one for name, one in found.items() if name != "model.entities"},
    "a weight too many": lambda found: {**found, "model.more": torch.zeros(2)},
    "a weight of another shape": lambda found: {**found, "model.entities": torch.zeros(3)},
    "a weight of another type": lambda found: {**found, "model.entities": found["model.entities"].double()},
    "a weight is no number": lambda found: {**found, "model.entities": found["model.entities"] * torch.nan},
    "no state of the stream": lambda found: {name: one for name, one in found.items() if name != "random.stream"},
    "a short state of the stream": lambda found: {**found, "random.stream": torch.zeros(3, dtype=torch.uint8)},
    "a state of floats": lambda found: {**found, "random.torch": torch.zeros(5056)},
    "a moment is missing": lambda found: {name: one for name, one in found.items() if name != "optimiser.1.exp_avg"},
    "a moment of another shape": lambda found: {**found, "optimiser.1.exp_avg": torch.zeros(1)},
    "a moment of whole numbers": lambda found: {**found, "optimiser.1.step": torch.tensor(3)},
    "a moment of nothing": lambda found: {**found, "optimiser.99.step": torch.tensor(3.0)},
    "a moment of no number": lambda found: {**found, "optimiser.x.step": torch.tensor(3.0)},
    "an unknown moment": lambda found: {**found, "optimiser.1.speed": found["optimiser.1.exp_avg"].clone()},
}


@pytest.mark.parametrize("change", HOSTILE_TENSORS.values(), ids=list(HOSTILE_TENSORS))
def test_hostile_tensors(
    saved: Run, graph: Graph, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    _resave(saved, "last.safetensors", tensors=change)
    with torch.random.fork_rng([]), pytest.raises(RunError, match=r"last\.safetensors (cannot be read|do not fit)"):
        saved.restore(parts(saved, graph, 2))


@pytest.mark.parametrize("device", [None, 3, "tpu", ["cuda"]])
def test_a_save_that_does_not_say_where_it_was_made(saved: Run, graph: Graph, device: Any) -> None:
    _resave(saved, "last.safetensors", about=lambda about: {**about, "device": device})
    for use in (saved.saved, lambda: saved.restore(parts(saved, graph, 2))):
        with pytest.raises(RunError, match=r"last\.safetensors cannot be read \(it does not say whether"):
            use()
    _resave(saved, "last.safetensors", about=lambda about: {key: about[key] for key in about if key != "device"})
    with pytest.raises(RunError, match=r"last\.safetensors cannot be read \(it does not say whether"):
        saved.saved()


def test_a_run_of_another_device_goes_on_with_other_draws(saved: Run, graph: Graph) -> None:
    """What a GPU saves, without the GPU: its generators' states are of another kind, all else is the same."""
    states = {"random.stream": torch.zeros(16, dtype=torch.uint8), "random.cuda": torch.zeros(16, dtype=torch.uint8)}
    _resave(saved, "last.safetensors", lambda about: {**about, "device": "cuda"}, lambda found: {**found, **states})
    assert saved.saved() == ("cuda", STATE)
    found, original = parts(saved, graph, 2), parts(saved, graph, 1)
    start = found.generator.get_state()
    assert saved.restore(found) == STATE
    pairs = zip(found.model.parameters(), original.model.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    one, two = (each.optimiser.state_dict()["state"][1]["exp_avg"] for each in (found, original))
    assert torch.equal(one, two)
    assert not torch.equal(found.generator.get_state(), start), "the first batches would come again"


CONFIG_DAMAGES: list[Any] = [
    "",
    "{",
    "[]",
    "null",
    '"text"',
    "[" * 3000,
    {},
    {"format": 1},
    {"format": 1, "graph": 3, "config": {}},
    {"format": 1, "graph": {}, "config": {}},
    {"format": 1, "graph": {"folder": "a", "name": "b", "fingerprint": "c"}, "config": []},
    {"format": 1, "graph": {"folder": "a", "name": "b", "fingerprint": "c"}, "config": {"method": "gqe"}},
    {"format": 1, "graph": {"folder": "a", "name": "b", "fingerprint": "c"}, "config": {"method": ["q2p"]}},
    {"format": 1, "graph": {"folder": "a", "name": "b", "fingerprint": "c"}, "config": {"model": 5}},
    {"format": 1, "graph": {"folder": "a", "name": "b", "fingerprint": "c"}, "config": {"model": {"depth": 5}}},
    {"format": 1, "graph": {"folder": "a", "name": "b", "fingerprint": "c"}, "config": {"training": {"batch": "x"}}},
    {
        "format": 1,
        "graph": {"folder": "a", "name": "b", "fingerprint": "c"},
        "config": {"training": {"batch": 10**400}},
    },
    {"format": 1, "graph": {"folder": "a", "name": "b", "fingerprint": "c"}, "config": {"training": {"mix": [1]}}},
    {"format": 1, "graph": {"folder": "a", "name": "b", "fingerprint": "c", "facts": 3}, "config": {}},
    {"format": 1, "graph": {"folder": "a", "name": "b", "fingerprint": "c", "facts": {"train": 3}}, "config": {}},
    '{"format": 1, "graph": {"folder": "", "name": "", "fingerprint": "", "facts": {"train": Infinity}}, "config": {}}',
    {"format": "\x1b[2J" * 50},
]


@pytest.mark.parametrize("document", CONFIG_DAMAGES, ids=range(len(CONFIG_DAMAGES)))
def test_a_damaged_configuration(run: Run, document: Any) -> None:
    (run.folder / "config.json").write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(RunError, match=r"config\.json cannot be read|run format") as caught:
        Run.open(run.folder)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_trace_goes_on_where_the_last_save_was(run: Run) -> None:
    with run.trace() as trace:
        for update in (5, 10, 15):
            trace.write(update=update, loss=update / 10)
    lines = run.read_trace()
    assert [line["update"] for line in lines] == [5, 10, 15]
    with (run.folder / "trace.jsonl").open("ab") as file:
        file.write(b'{"update": 20, "lo')  # killed here
    assert run.read_trace() == lines
    with run.trace(after=10) as trace:
        trace.write(update=15, loss=9)
    assert run.read_trace() == [*lines[:2], {"update": 15, "loss": 9}]


def test_what_is_no_line_of_a_trace_is_left_out(run: Run) -> None:
    (run.folder / "trace.jsonl").write_bytes(
        b'\xff\xfe\n[1]\n5\n\n{"update": "3"}\n{"update": 4, "seconds": "long"}\n' + b"[" * 3000 + b"\n"
    )
    assert run.read_trace() == [{"update": 4, "seconds": "long"}]
    assert run.cost() == (0.0, 0.0)


def test_the_cost_of_a_training(run: Run) -> None:
    with run.trace() as trace:
        trace.write(update=1, loss=1.0, seconds=2.5, gpu_memory_gib=1.25)
        trace.write(update=1, validation={"all": 1.0}, seconds=3.5)
    assert run.cost() == (3.5, 1.25)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond this size: as on a full disk, the system refuses to write on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_full_disk_keeps_what_was_saved(saved: Run, graph: Graph, share: float) -> None:
    made = parts(saved, graph, 2)
    contents = {path.name: path.read_bytes() for path in saved.folder.iterdir()}
    saves: dict[str, Callable[[], None]] = {
        "best.safetensors": lambda: saved.save_best(made.model, STATE),
        "last.safetensors": lambda: saved.save_last(made, STATE),
    }
    for name, save in saves.items():
        with (
            largest_file(int(len(contents[name]) * share)),
            pytest.raises(RunError, match=rf"{name} could not be written .*Make room, then .*--resume"),
        ):
            save()
    assert {path.name: path.read_bytes() for path in saved.folder.iterdir()} == contents
    assert saved.restore(parts(saved, graph, 3)) == STATE


def test_a_full_disk_cuts_a_line_of_the_trace(run: Run) -> None:
    with run.trace() as trace:
        trace.write(update=1, loss=0.5)
        size = (run.folder / "trace.jsonl").stat().st_size
        for room in (0, 5):
            with largest_file(size + room), pytest.raises(RunError, match=r"trace\.jsonl could not be written"):
                trace.write(update=2, loss=0.25)
    assert run.read_trace() == [{"update": 1, "loss": 0.5}]


HOLD = """
import sys
from pathlib import Path
from query2particles.run import Run
with Run.open(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_cannot_train_in_one_folder(run: Run) -> None:
    command = [sys.executable, "-c", HOLD, str(run.folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="another process is training in"), run.held():
            pass
        process.kill()
    with run.held():  # it went with the process
        pass


def test_a_file_system_without_locks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with run.held():
        pass
