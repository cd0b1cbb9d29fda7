"""A run folder: everything about one training, and all that is needed to use or resume it.

    config.json          method and settings, the graph (name, folder, fingerprint, numbers of facts), versions
    best.safetensors     the weights with the best validation so far (the latest, where there is no validation)
    last.safetensors     the latest weights with the optimiser's state and the random states, to resume from
    trace.jsonl          what happened: one line for each report and each validation
    last.shards/         the same of several processes that train together (`shared_checkpoint`)
    NAME.rows            the entities' tables, where they are trained in files (table=host), and what goes with them
    graph/               the graph, where it has no other place
    calibration.json     how scores become probabilities (`calibration`), with calibration.png, the picture of it

Each file is replaced in one step, so a run that is killed at any moment can be resumed from its last save. While a
process trains, it holds a lock on `.lock`, which goes with it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from query2particles import __version__
from query2particles.checkpoint import Checkpoint, Saved, State, quoted, unwritten
from query2particles.config import Config, TableName, answered_by, build
from query2particles.distributed import Group
from query2particles.engine.looking import FixedRows, Looking
from query2particles.errors import GraphError, RunError, UsageError
from query2particles.files import check_nothing_else, new_file, write_json
from query2particles.graph.folders import ATLAS, is_known_folder, open_graph
from query2particles.graph.graph import Graph
from query2particles.methods.registry import METHODS, Model, trainee_of
from query2particles.shared_checkpoint import SharedCheckpoint
from query2particles.tables import stays_on_disk

__all__ = ["CALIBRATION", "GRAPH", "JOINED", "RELIABILITY", "Run", "Trace", "is_run_folder", "was_begun"]

_FORMAT = 1
_CONFIG, _BEST, _LAST, _TRACE, _LOCK = "config.json", "best.safetensors", "last.safetensors", "trace.jsonl", ".lock"
CALIBRATION, RELIABILITY = "calibration.json", "calibration.png"
"""What `calibration` adds."""

JOINED = "joined.json"
"""In its place where the folder is one of runs that answer together (`joined`)."""

_PARTS = ("vectors", "links")
"""The folders in which a joined run has its parts."""

GRAPH = "graph"
"""The folder of a graph that has no other place, in the run folder."""

_ROWS, _SHARED = ".rows", "last.shards"
_OWN = (_CONFIG, _BEST, _LAST, _TRACE, _LOCK, CALIBRATION, RELIABILITY)


def _is_own(name: str) -> bool:
    return name in _OWN or name.endswith(_ROWS)


def is_run_folder(path: Path) -> bool:
    """Of one training, or of several that answer together (`joined`)."""
    return (path / _CONFIG).is_file() or (path / JOINED).is_file()


def was_begun(path: Path) -> bool:
    """Whether it is a run folder, or has parts that were to be joined. Runs inside a graph's folder make it none."""
    has_parts = any((path / part / _CONFIG).is_file() for part in _PARTS)
    return is_run_folder(path) or (has_parts and not is_known_folder(path))


@dataclass(frozen=True)
class Run:
    """A run folder, with its configuration read."""

    folder: Path
    config: Config
    graph_folder: str
    graph_name: str
    fingerprint: str
    facts: tuple[int, int] | None
    """How many the graph had when the run began: for training, and in all; None where that was not written down."""

    @staticmethod
    def create(folder: Path, config: Config, graph: Graph, graph_folder: str) -> Run:
        """A new run; a folder that holds anything but a run of which nothing was saved yet is refused."""
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file: name a new folder (--out)")
        if folder.exists() and not _holds_nothing(folder):
            hint = f"resume it with q2p train --resume {folder}, or " if is_run_folder(folder) else ""
            raise UsageError(f"{folder} is not empty: {hint}name a new folder (--out)")
        if graph_folder != ATLAS:
            graph_folder = str(Path(graph_folder).resolve())
        # Settings that do not go together are refused before there is a trace.
        METHODS[config.method].specimen(config.model)
        run = Run(folder, config.with_absolute_paths(), graph_folder, graph.name, graph.fingerprint, _facts_of(graph))
        folder.mkdir(parents=True, exist_ok=True)
        with run.held():
            run._write_config()
        return run

    @staticmethod
    def open(folder: Path, wanted: str | None = None) -> Run:
        """The run in a folder; where there is none, the message says how to make one of the method that is `wanted`."""
        how = "q2p train GRAPH" + (f" --method {wanted}" if wanted else "")
        if not folder.is_dir():
            raise UsageError(f"there is no run folder {folder}: train one with {how} --out {folder}")
        path = folder / _CONFIG
        try:
            document = json.loads(path.read_text("utf-8"))
            found = document["format"]
            if found != _FORMAT:
                raise RunError(
                    f"{folder} is in run format {quoted(found)} (query2particles "
                    f"{quoted(document.get('version'))}), this version reads {_FORMAT}; train it again"
                )
            graph = document["graph"]
            config = Config.from_json(document["config"])
            facts = (int(graph["facts"]["train"]), int(graph["facts"]["all"])) if "facts" in graph else None
            own = str(graph["folder"])
            place = own if own == ATLAS else str((folder / own).resolve())
            return Run(folder, config, place, str(graph["name"]), str(graph["fingerprint"]), facts)
        except FileNotFoundError as error:
            if (folder / JOINED).is_file():
                raise UsageError(
                    f"{folder} is a joined run: name the part that is meant, {folder}/vectors or {folder}/links"
                ) from error
            if was_begun(folder):
                raise UsageError(
                    f"{folder} has parts that are not joined yet: give the command that began it again, or join them: "
                    f"q2p join {folder}/vectors {folder}/links --out NEW"
                ) from error
            raise RunError(f"{folder} is no run folder: it has no {_CONFIG}; {how} makes one") from error
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
            UsageError,
        ) as error:
            raise RunError(f"{path} cannot be read ({quoted(error)}); restore it, or train the run again") from error

    @staticmethod
    def was_trained_in(folder: Path) -> bool:
        """Whether a folder holds what a training could be resumed from, and no mere copy of its result."""
        return (folder / _LAST).is_file() or (folder / _SHARED).is_dir()

    def with_config(self, config: Config, *, written: bool = True) -> Run:
        """The same run with other settings, which are written down (by one of several processes)."""
        run = replace(self, config=config)
        if written:
            run._write_config()
        return run

    def answered_by(self, method: str, settings: Sequence[str] = ()) -> Run:
        """The same weights under a method that answers on top of this run's, or other settings; nothing is written."""
        return replace(self, config=answered_by(self.config, method, settings))

    def graph(self, folder: str | None = None) -> Graph:
        """The graph that the run was trained on, from where it was or from another folder."""
        try:
            graph = open_graph(folder or self.graph_folder)
        except (UsageError, GraphError) as error:
            if folder is not None:
                raise
            raise RunError(
                f"the graph of {self.folder} cannot be opened: {str(error).rstrip('.')}. "
                "Where it has moved, name the new place (--graph GRAPH), or resume with it: "
                f"q2p train GRAPH --resume {self.folder}"
            ) from error
        self.check(graph)
        # A graph that goes with this run is no place for others to find it.
        return (
            graph if folder is not None or Path(self._graph_from_here()).is_absolute() else replace(graph, source=None)
        )

    def check(self, graph: Graph) -> None:
        """Refuse a graph whose ids mean something else."""
        if graph.fingerprint != self.fingerprint:
            raise RunError(
                f"{self.folder} was trained on another graph: its entities and relations ({quoted(self.graph_name)}, "
                f"{quoted(self.fingerprint[:12])}) are not those of {graph.name} ({graph.fingerprint[:12]}); "
                "name the graph that it was trained on"
            )

    def check_facts(self, graph: Graph) -> None:
        """Refuse a graph that the run cannot be trained on: it must have as many facts as when the run began."""
        self.check(graph)
        if self.facts is not None and self.facts != _facts_of(graph):
            then, now = ("{:,} ({:,} in all)".format(*facts) for facts in (self.facts, _facts_of(graph)))
            raise RunError(
                f"{graph.name} has other facts than when {self.folder} began: {now} for training, then {then}; "
                "train anew, into another folder"
            )

    def model(self, graph: Graph, device: torch.device | str = "cpu") -> Model:
        """The trained model, ready to answer: the best weights. Tables that memory has no room for stay in the file."""
        self.check(graph)
        if stays_on_disk(self.config, len(graph.entities)):
            entry = METHODS[self.config.method]
            names = entry.entity_tables(self.config.model)
            with torch.random.fork_rng([]):
                few = entry.method(1, graph.at(self.config.training.split).relations, self.config.model)
            self._best.load_weights(few, but=names)
            return cast(Model, Looking(few, FixedRows(self._best.mapped(names))).eval().to(device))
        with torch.random.fork_rng([]):  # the weights that it starts with are drawn in vain
            model = build(self.config, graph)
        self._best.load_weights(trainee_of(model))
        return model.eval().to(device)

    def mapped_model(self, graph: Graph) -> Model:
        """The same with its weights left in their file, to be read where they are used; on the CPU.

        A method that makes more of the graph than weights cannot be built without memory: it is loaded.
        """
        if hasattr(METHODS[self.config.method].method, "attach"):
            return self.model(graph)
        self.check(graph)
        with torch.device("meta"):
            model = build(self.config, graph)
        self._best.map_weights(trainee_of(model))
        return model.eval()

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """What the answers depend on, beside the settings."""
        return (self._best.path,)

    def saved(self) -> tuple[str, State] | None:
        """The kind of device of the last save, which alone continues it exactly, and its state; None without a save."""
        last = self._latest()
        return None if last is None else last.device_and_state()

    def _latest(self) -> Checkpoint | SharedCheckpoint | None:
        """The last save: of one process, or of several; the later one where there are both."""
        there: list[Checkpoint | SharedCheckpoint] = [one for one in (self._last, self._shared) if one.path.exists()]
        return max(there, key=lambda one: one.device_and_state()[1].update, default=None)

    def save_best(self, model: torch.nn.Module, state: State, group: Group | None = None) -> None:
        weights = model.state_dict()  # which several processes put together
        if group is None or group.leads:
            self._best.save_weights(weights, state)

    def save_last(self, saved: Saved, state: State, group: Group | None = None) -> None:
        if group is None:
            self._last.save_training(saved, state)
        else:
            self._shared.save(saved, state, group)

    def saved_table(self) -> TableName | None:
        """Where the entities' tables were at the last save, for settings that leave it open; None without a save."""
        last = self._latest()
        return None if last is None else last.table()

    def restore(self, saved: Saved, group: Group | None = None) -> State:
        """Bring all of it to where the last save left it; where nothing was saved, the start."""
        last = self._latest()
        if isinstance(last, SharedCheckpoint):
            return last.load(saved, group)
        if last is not None and group is not None:
            raise RunError(
                f"{self.folder} was last saved by one process: go on with one (q2p train --resume {self.folder}); what "
                "several processes saved, any number can go on with"
            )
        return State() if last is None else last.load_training(saved)

    def remove(self, also: Collection[str] = ()) -> None:
        """Remove all files of the run, and others of these names; where anything else would be lost, nothing."""
        self.check_removable(also)
        with self.held():
            # What says that this is a run goes last: half a removal can be taken up again.
            for path in sorted(self.folder.iterdir(), key=lambda path: path.name == _CONFIG):
                path.unlink()

    def check_removable(self, also: Collection[str] = ()) -> None:
        """Refuse to remove a run that is being trained, or a folder that holds anything but the run and such names."""
        if self._shared.path.exists():
            raise UsageError(f"{self.folder} was trained by several processes: remove it by hand, or name another")
        check_nothing_else(self.folder, lambda name: _is_own(name) or name in also or ".partial-" in name)
        with self.held():
            pass

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training in this folder; where the file system knows no locks, go on without."""
        with (self.folder / _LOCK).open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise RunError(
                        f"another process is training in {self.folder}; wait for it, stop it, or name another folder"
                    ) from error
            yield

    @contextlib.contextmanager
    def trace(self, after: int = 0, *, written: bool = True) -> Iterator[Trace]:
        """The trace, to be continued after an update: lines of later ones, lost by a crash, are taken out first.

        Only one of several processes has it `written`.
        """
        if not written:
            yield Trace(self.folder, None)
            return
        lines = [line for line in self.read_trace() if line["update"] <= after]
        with new_file(self.folder / _TRACE) as partial:
            partial.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        with (self.folder / _TRACE).open("ab", buffering=0) as file:
            yield Trace(self.folder, file)

    def read_trace(self) -> list[dict[str, Any]]:
        """The lines so far; one that was cut off, or is no line of a trace, is left out."""
        path = self.folder / _TRACE
        lines = []
        for text in path.read_bytes().splitlines() if path.exists() else []:
            with contextlib.suppress(ValueError, RecursionError):
                line = json.loads(text)
                if isinstance(line, dict) and type(line.get("update")) is int:
                    lines.append(line)
        return lines

    def cost(self) -> tuple[float, float]:
        """What training took so far: seconds, and GiB on the GPU."""
        lines = self.read_trace()

        def most(key: str) -> float:
            return max((line[key] for line in lines if type(line.get(key)) in (int, float)), default=0.0)

        return most("seconds"), most("gpu_memory_gib")

    def _write_config(self) -> None:
        write_json(
            self.folder / _CONFIG,
            {
                "format": _FORMAT,
                "version": __version__,
                "torch": torch.__version__,
                "graph": {
                    "name": self.graph_name,
                    "folder": self._graph_from_here(),
                    "fingerprint": self.fingerprint,
                    **({"facts": dict(zip(("train", "all"), self.facts, strict=True))} if self.facts else {}),
                },
                "config": self.config.as_json(),
            },
        )

    def _graph_from_here(self) -> str:
        """Where the graph is: by a path from here where it lies in the run folder, or in that of a joined run whose
        part this is, so that the folder can be moved as one.
        """
        if self.graph_folder != ATLAS:
            here, graph = self.folder.resolve(), Path(self.graph_folder)
            if graph == here / GRAPH:
                return f"./{GRAPH}"
            if here.name in _PARTS and graph == here.parent / GRAPH:
                return f"../{GRAPH}"
        return self.graph_folder

    @property
    def _best(self) -> Checkpoint:
        return Checkpoint(self.folder / _BEST, self.fingerprint, other=_LAST)

    @property
    def _shared(self) -> SharedCheckpoint:
        return SharedCheckpoint(self.folder / _SHARED, self.fingerprint)

    @property
    def _last(self) -> Checkpoint:
        return Checkpoint(self.folder / _LAST, self.fingerprint, other=_BEST)


@dataclass(frozen=True)
class Trace:
    """Where lines go, each at once."""

    folder: Path
    file: io.RawIOBase | None
    """None: nowhere."""

    def write(self, **line: Any) -> None:
        if self.file is None:
            return
        data = json.dumps(line).encode() + b"\n"
        try:
            written = self.file.write(data)
        except OSError as error:
            raise unwritten(self.folder / _TRACE, error) from error
        if written != len(data):
            raise unwritten(self.folder / _TRACE, "no space left")


def _holds_nothing(folder: Path) -> bool:
    """Whether nothing would be lost there: at most a run that ended before its first save."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {str(folder)}
    known = {name for name in names for mine in _OWN if name.startswith(f".{mine}.partial-")}
    known |= {_CONFIG, _TRACE, _LOCK, GRAPH}
    if any(name not in known and not name.endswith(_ROWS) for name in names):
        return False
    try:
        return _CONFIG not in names or bool(Run.open(folder))
    except RunError:  # others write files of this name, too
        return False


def _facts_of(graph: Graph) -> tuple[int, int]:
    return graph.at("train").facts, graph.at("test").facts
