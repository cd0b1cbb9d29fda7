"""A run folder: everything about one training, and all that is needed to use or resume it.

    config.json          method and settings, the graph (name, folder, fingerprint), versions
    best.safetensors     the weights with the best validation so far (the latest, where there is no validation)
    last.safetensors     the latest weights with the optimiser's state and the random states, to resume from
    trace.jsonl          what happened: one line for each report and each validation

Each file is replaced in one step, so a run that is killed at any moment can be resumed from its last save. While a
process trains, it holds a lock on `.lock`, which goes with it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from query2particles import __version__
from query2particles.config import Config, build
from query2particles.errors import RunError, UsageError, clipped, printable
from query2particles.files import new_file, write_json
from query2particles.graph.folders import ATLAS, open_graph
from query2particles.graph.graph import Graph
from query2particles.methods.q2p import Q2P

__all__ = ["Run", "State", "Trace", "is_run_folder"]

_FORMAT = 1
_CONFIG, _BEST, _LAST, _TRACE, _LOCK = "config.json", "best.safetensors", "last.safetensors", "trace.jsonl", ".lock"
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
"""What AdamW remembers of a parameter."""


def is_run_folder(path: Path) -> bool:
    return (path / _CONFIG).is_file()


@dataclass
class State:
    """What training has to remember besides weights, the optimiser's state and random states.

    Validations are mean MRRs in percent, by group of shapes: epfo, negation, all.
    """

    update: int = 0
    seconds: float = 0.0
    latest: dict[str, float] | None = None
    best: dict[str, float] | None = None
    best_update: int = 0
    waited: int = 0
    """Validations since the best."""

    def note(self, validation: dict[str, float]) -> bool:
        """Take down a validation; whether it is the best so far."""
        self.latest = validation
        better = self.best is None or validation["all"] > self.best["all"]
        if better:
            self.best, self.best_update = validation, self.update
        self.waited = 0 if better else self.waited + 1
        return better

    def waited_enough(self, patience: int) -> bool:
        return 0 < patience <= self.waited

    @staticmethod
    def from_json(document: object) -> State:
        """What `asdict` gave; a ValueError where it is nothing of the kind."""
        known = asdict(State())
        if not isinstance(document, dict) or document.keys() != known.keys():
            raise ValueError(f"a state has {', '.join(known)}")
        for name in ("update", "best_update", "waited"):
            if type(document[name]) is not int or document[name] < 0:
                raise ValueError(f"{name} is {clipped(repr(document[name]))}")
        for name in ("latest", "best"):
            if document[name] is not None and not (isinstance(document[name], dict) and "all" in document[name]):
                raise ValueError(f"{name} is {clipped(repr(document[name]))}")
        numbers = [document["seconds"], *(document["latest"] or {}).values(), *(document["best"] or {}).values()]
        if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
            raise ValueError("a figure is no number")
        return State(**document)


@dataclass(frozen=True)
class Run:
    """A run folder, with its configuration read."""

    folder: Path
    config: Config
    graph_folder: str
    graph_name: str
    fingerprint: str

    @staticmethod
    def create(folder: Path, config: Config, graph: Graph, graph_folder: str) -> Run:
        """A new run; a folder that holds anything but a run of which nothing was saved yet is refused."""
        if folder.exists() and not _holds_nothing(folder):
            hint = f"resume it with q2p train --resume {folder}, or " if is_run_folder(folder) else ""
            raise UsageError(f"{folder} is not empty: {hint}name a new folder (--out)")
        if graph_folder != ATLAS:
            graph_folder = str(Path(graph_folder).resolve())
        run = Run(folder, config.with_absolute_paths(), graph_folder, graph.name, graph.fingerprint)
        folder.mkdir(parents=True, exist_ok=True)
        with run.held():
            run._write_config()
        return run

    @staticmethod
    def open(folder: Path) -> Run:
        if not folder.is_dir():
            raise UsageError(f"there is no run folder {folder}: train one with q2p train GRAPH --out {folder}")
        path = folder / _CONFIG
        try:
            document = json.loads(path.read_text("utf-8"))
            found = document["format"]
            if found != _FORMAT:
                raise RunError(
                    f"{folder} is in run format {_quoted(found)} (query2particles "
                    f"{_quoted(document.get('version'))}), this version reads {_FORMAT}; train it again"
                )
            graph = document["graph"]
            config = Config.from_json(document["config"])
            return Run(folder, config, str(graph["folder"]), str(graph["name"]), str(graph["fingerprint"]))
        except FileNotFoundError as error:
            raise RunError(f"{folder} is no run folder: it has no {_CONFIG}; q2p train makes one") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
            raise RunError(f"{path} cannot be read ({_quoted(error)}); restore it, or train the run again") from error

    def with_config(self, config: Config) -> Run:
        """The same run with other settings, which are written down."""
        run = replace(self, config=config)
        run._write_config()
        return run

    def graph(self, folder: str | None = None) -> Graph:
        """The graph that the run was trained on, from where it was or from another folder."""
        graph = open_graph(folder or self.graph_folder)
        self.check(graph)
        return graph

    def check(self, graph: Graph) -> None:
        if graph.fingerprint != self.fingerprint:
            raise RunError(
                f"{self.folder} was trained on another graph: its entities and relations ({_quoted(self.graph_name)}, "
                f"{_quoted(self.fingerprint[:12])}) are not those of {graph.name} ({graph.fingerprint[:12]}); "
                "name the graph that it was trained on"
            )

    def model(self, graph: Graph, device: torch.device | str = "cpu") -> Q2P:
        """The trained model, ready to answer: the best weights."""
        self.check(graph)
        tensors, _ = self._read(_BEST)
        with torch.random.fork_rng([]):  # the weights that it starts with are drawn in vain
            model = build(self.config, len(graph.entities), graph.at("train").relations)
        self._load(_BEST, model, tensors)
        return model.eval().to(device)

    def device(self) -> str | None:
        """The kind of device that the run was saved on, where it has to be resumed; None where nothing was saved."""
        return str(self._read(_LAST, header=True)[1].get("device")) if (self.folder / _LAST).exists() else None

    def save_best(self, model: torch.nn.Module, state: State) -> None:
        self._write(_BEST, model.state_dict(), {"update": state.update, "validation": state.latest})

    def save_last(
        self, model: torch.nn.Module, optimiser: torch.optim.AdamW, generator: torch.Generator, state: State
    ) -> None:
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        for number, moments in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": value for name, value in moments.items()}
        tensors["random.stream"] = generator.get_state()
        tensors["random.torch"] = torch.get_rng_state()
        if generator.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(generator.device)
        self._write(_LAST, tensors, {"device": generator.device.type, "state": asdict(state)})

    def restore(self, model: torch.nn.Module, optimiser: torch.optim.AdamW, generator: torch.Generator) -> State:
        """Bring all of it to where the last save left it; where nothing was saved, the start."""
        if not (self.folder / _LAST).exists():
            return State()
        tensors, about = self._read(_LAST)
        if about.get("device") != generator.device.type:
            raise RunError(
                f"{self.folder} was saved on {_quoted(about.get('device'))}, whose random numbers "
                f"{generator.device.type} cannot continue; resume it with --device {_quoted(about.get('device'))}"
            )
        self._load(_LAST, model, _below("model.", tensors))
        try:
            state = State.from_json(about.get("state"))
            _load_moments(optimiser, _below("optimiser.", tensors))
            generator.set_state(tensors["random.stream"])
            torch.set_rng_state(tensors["random.torch"])
            if generator.device.type == "cuda":
                torch.cuda.set_rng_state(tensors["random.cuda"], generator.device)
        except (LookupError, ValueError, TypeError, RuntimeError) as error:
            raise self._unreadable(_LAST, error) from error
        return state

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
    def trace(self, after: int = 0) -> Iterator[Trace]:
        """The trace, to be continued after an update: lines of later ones, lost by a crash, are taken out first."""
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
                "graph": {"name": self.graph_name, "folder": self.graph_folder, "fingerprint": self.fingerprint},
                "config": self.config.as_json(),
            },
        )

    def _write(self, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        document = {"format": _FORMAT, "graph": self.fingerprint, **about}
        on_host = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        try:
            with new_file(self.folder / name) as partial:
                # The library's own writer leaves files of unknown names behind where it is killed.
                partial.write_bytes(save(on_host, {"about": json.dumps(document)}))
        except OSError as error:
            raise _unwritten(self.folder, name, error) from error

    def _read(self, name: str, *, header: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors of a file (none for its `header` alone), and the document that goes with them."""
        path = self.folder / name
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["about"])
                tensors = {} if header else {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except FileNotFoundError as error:
            raise RunError(
                f"{self.folder} has no {name}: nothing was saved yet; go on with q2p train --resume {self.folder}"
            ) from error
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise self._unreadable(name, error) from error
        if not isinstance(about, dict):
            raise self._unreadable(name, "what it says about itself is no object")
        if about.get("format") != _FORMAT:
            raise RunError(f"{path} is in format {_quoted(about.get('format'))}, this version reads {_FORMAT}")
        if about.get("graph") != self.fingerprint:
            raise RunError(
                f"{path} holds weights for another graph than the one that {_CONFIG} beside it names; put back the "
                "file that was there, or train it again"
            )
        return tensors, about

    def _load(self, name: str, model: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
        own = model.state_dict()
        forms, wanted = ({key: (one.shape, one.dtype) for key, one in several.items()} for several in (weights, own))
        differing = sorted(key for key in forms.keys() | wanted.keys() if forms.get(key) != wanted.get(key))
        if differing:
            raise RunError(
                f"the weights in {self.folder / name} do not fit {_CONFIG} beside them ({_quoted(differing[0])}); "
                "put back the file that was there, or train it again"
            )
        if not all(bool(one.isfinite().all()) for one in weights.values()):
            raise self._unreadable(name, "it holds weights that are no numbers")
        model.load_state_dict(dict(weights))

    def _unreadable(self, name: str, reason: object) -> RunError:
        other = {_BEST: _LAST, _LAST: _BEST}[name]
        return RunError(
            f"{self.folder / name} cannot be read ({_quoted(reason)}); copy it from a backup, or train again "
            f"({other} beside it may be whole)"
        )


@dataclass(frozen=True)
class Trace:
    """Where lines go, each at once."""

    folder: Path
    file: io.RawIOBase

    def write(self, **line: Any) -> None:
        data = json.dumps(line).encode() + b"\n"
        try:
            written = self.file.write(data)
        except OSError as error:
            raise _unwritten(self.folder, _TRACE, error) from error
        if written != len(data):
            raise _unwritten(self.folder, _TRACE, "no space left")


def _holds_nothing(folder: Path) -> bool:
    """Whether nothing would be lost there: at most a run that ended before its first save."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {str(folder)}
    own = (_CONFIG, _BEST, _LAST, _TRACE)
    known = {name for name in names for mine in own if name.startswith(f".{mine}.partial-")} | {_CONFIG, _TRACE, _LOCK}
    if names - known:
        return False
    try:
        return _CONFIG not in names or bool(Run.open(folder))
    except RunError:  # others write files of this name, too
        return False


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _load_moments(optimiser: torch.optim.AdamW, moments: Mapping[str, Tensor]) -> None:
    """The optimiser's state, by parameter's number and moment; a ValueError where it is nothing of the kind."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in moments.items():
        number, _, moment = name.partition(".")
        shape = torch.Size() if moment == "step" else parameters[int(number)].shape
        if tensor.shape != shape or not tensor.is_floating_point():
            raise ValueError(f"the optimiser's {clipped(name)} is of shape {tuple(tensor.shape)}")
        found.setdefault(int(number), {})[moment] = tensor
    if any(several.keys() != _MOMENTS for several in found.values()):
        raise ValueError(f"the optimiser keeps {', '.join(sorted(_MOMENTS))}")
    optimiser.load_state_dict({**optimiser.state_dict(), "state": found})


def _unwritten(folder: Path, name: str, reason: object) -> RunError:
    return RunError(
        f"{folder / name} could not be written ({_quoted(reason)}); what was saved before is still there. "
        f"Make room, then go on with q2p train --resume {folder}"
    )


def _quoted(text: object) -> str:
    """What a file or an error says, fit for a message."""
    return printable(clipped(str(text), 120))
