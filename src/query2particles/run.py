"""A run folder: everything about one training, and all that is needed to use or resume it.

    config.json          method and settings, the graph (name, folder, fingerprint), versions
    best.safetensors     the weights with the best validation so far (the latest, where there is no validation)
    last.safetensors     the latest weights with the optimiser's state and the random states, to resume from
    trace.jsonl          what happened: one line for each report, validation and save

Each file is replaced in one step, so a run that is killed at any moment can be resumed from its last save.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from query2particles import __version__
from query2particles.config import Config, build
from query2particles.errors import RunError, UsageError, clipped
from query2particles.files import new_file, write_json
from query2particles.graph.folders import ATLAS, open_graph
from query2particles.graph.graph import Graph
from query2particles.methods.q2p import Q2P

__all__ = ["Run", "Saved"]

_FORMAT = 1
_CONFIG, _BEST, _LAST, _TRACE = "config.json", "best.safetensors", "last.safetensors", "trace.jsonl"


@dataclass(frozen=True)
class Saved:
    """Tensors by name, and a small document that goes with them."""

    tensors: Mapping[str, Tensor]
    about: Mapping[str, Any]


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
        """A new run; a folder that holds anything is refused."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            hint = f"resume it with q2p train --resume {folder}, or " if (folder / _CONFIG).is_file() else ""
            raise UsageError(f"{folder} is not empty: {hint}name a new folder (--out)")
        if graph_folder != ATLAS:
            graph_folder = str(Path(graph_folder).resolve())
        run = Run(folder, config, graph_folder, graph.name, graph.fingerprint)
        run._write_config()
        return run

    @staticmethod
    def open(folder: Path) -> Run:
        if not folder.is_dir():
            raise UsageError(f"there is no run folder {folder}: train one with q2p train GRAPH --out {folder}")
        try:
            document = json.loads((folder / _CONFIG).read_text("utf-8"))
            found = document["format"]
            if found != _FORMAT:
                raise RunError(
                    f"{folder} is in run format {clipped(str(found))} (query2particles "
                    f"{clipped(str(document.get('version')))}), this version reads {_FORMAT}; train it again"
                )
            graph = document["graph"]
            config = Config.from_json(document["config"])
            return Run(folder, config, str(graph["folder"]), str(graph["name"]), str(graph["fingerprint"]))
        except FileNotFoundError as error:
            raise RunError(f"{folder} is no run folder: it has no {_CONFIG}; q2p train makes one") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(f"{folder / _CONFIG} cannot be read ({clipped(str(error))}); train the run again") from error

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
                f"{self.folder} was trained on another graph: its entities and relations ({self.graph_name}, "
                f"{self.fingerprint[:12]}) are not those of {graph.name} ({graph.fingerprint[:12]}); "
                "name the graph that it was trained on"
            )

    def model(self, graph: Graph, device: torch.device | str = "cpu") -> Q2P:
        """The trained model, ready to answer: the best weights."""
        self.check(graph)
        model = build(self.config, len(graph.entities), graph.at("train").relations)
        self.load_into(model, self.best())
        return model.eval().to(device)

    def best(self) -> Saved:
        return self._read(_BEST)

    def last(self) -> Saved | None:
        """What to resume from; None where nothing was saved yet."""
        return self._read(_LAST) if (self.folder / _LAST).exists() else None

    def save_best(self, saved: Saved) -> None:
        self._write(_BEST, saved)

    def save_last(self, saved: Saved) -> None:
        self._write(_LAST, saved)

    def load_into(self, model: torch.nn.Module, saved: Saved, prefix: str = "") -> None:
        weights = {
            name.removeprefix(prefix): tensor for name, tensor in saved.tensors.items() if name.startswith(prefix)
        }
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise RunError(
                f"the weights in {self.folder} do not fit its {_CONFIG} ({clipped(str(error), 200)}); train it again"
            ) from error

    @contextlib.contextmanager
    def trace(self, after: int = 0) -> Iterator[Trace]:
        """The trace, to be continued after an update: lines of later ones, lost by a crash, are taken out first."""
        lines = [line for line in self.read_trace() if line.get("update", 0) <= after]
        with new_file(self.folder / _TRACE) as partial:
            partial.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        with (self.folder / _TRACE).open("a", encoding="utf-8") as file:
            yield Trace(file)

    def read_trace(self) -> list[dict[str, Any]]:
        """The lines so far; a last one that was cut off is left out."""
        path = self.folder / _TRACE
        lines = []
        for line in path.read_text("utf-8").splitlines() if path.exists() else []:
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
        return lines

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

    def _write(self, name: str, saved: Saved) -> None:
        about = {"format": _FORMAT, "graph": self.fingerprint, **saved.about}
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in saved.tensors.items()}
        try:
            with new_file(self.folder / name) as partial:
                save_file(tensors, partial, {"about": json.dumps(about)})
        except (SafetensorError, OSError) as error:
            raise RunError(
                f"{self.folder / name} could not be written ({error}); what was saved before is still there. "
                f"Make room, then go on with q2p train --resume {self.folder}"
            ) from error

    def _read(self, name: str) -> Saved:
        path = self.folder / name
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["about"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except FileNotFoundError as error:
            raise RunError(f"{self.folder} has no {name}: nothing was saved yet; go on with its training") from error
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            other = {_BEST: _LAST, _LAST: _BEST}[name]
            raise RunError(
                f"{path} cannot be read ({clipped(str(error))}); copy it from a backup, or train again "
                f"({other} beside it may be whole)"
            ) from error
        if about.get("format") != _FORMAT:
            raise RunError(f"{path} is in format {clipped(str(about.get('format')))}, this version reads {_FORMAT}")
        if about.get("graph") != self.fingerprint:
            raise RunError(f"{path} holds weights for another graph than {_CONFIG} beside it names; train it again")
        return Saved(tensors, about)


@dataclass(frozen=True)
class Trace:
    """Where lines go, each at once."""

    file: Any

    def write(self, **line: Any) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
