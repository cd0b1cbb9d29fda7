"""Weights on disk: one safetensors file with a document about itself, and the whole state of a training in one.

A file belongs to a graph, by its fingerprint. Whatever is wrong with one is a RunError that says what to do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from query2particles.config import TableName, Training
from query2particles.engine.rows import Table
from query2particles.errors import RunError, clipped, printable
from query2particles.files import new_file

__all__ = ["Checkpoint", "Saved", "State", "quoted", "unwritten", "write_blocks", "write_tensors"]

_FORMAT = 1
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
"""What AdamW remembers of a parameter."""
_DEVICES = ("cpu", "cuda")
_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.uint8: "U8", torch.float64: "F64", torch.int64: "I64"}
"""What safetensors calls them."""
_BLOCK_BYTES = 1 << 26
"""So much of a tensor is written or looked at at once."""


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

    def finished(self, training: Training) -> bool:
        """Whether there is nothing left to do: all updates are made, or too many validations were no better."""
        return self.update >= training.updates or 0 < training.patience <= self.waited

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
class Saved:
    """What a training is resumed from, besides its `State`: brought to where it was by `Checkpoint.load_training`."""

    model: torch.nn.Module
    optimiser: torch.optim.AdamW
    generator: torch.Generator
    rows: Table | None = None
    """Of entities that are trained by rows."""
    table: TableName = "whole"
    """Where they are: the setting of that name."""
    scored: Mapping[str, torch.nn.Parameter] | None = None
    """Of a shard that moves as a whole, the rows as parameters."""
    entities: int = 0
    """How many there are in all, where these are shards."""

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """What the optimiser moves, by name."""
        moved = {id(one) for group in self.optimiser.param_groups for one in group["params"]}
        named = ((name.removeprefix("method."), one) for name, one in self.model.named_parameters())
        return {**{name: one for name, one in named if id(one) in moved}, **(self.scored or {})}

    def weights(self) -> dict[str, Tensor]:
        """Those that a checkpoint holds."""
        elsewhere = frozenset[str]() if self.rows is None else self.rows.elsewhere
        return {name: one for name, one in self.model.state_dict().items() if name not in elsewhere}

    def finite(self) -> bool:
        """Whether all weights are numbers."""
        here = [*self.model.parameters(), *([] if self.rows is None else self.rows.tables.values())]
        return all(map(_is_finite, here))


@dataclass(frozen=True)
class Checkpoint:
    """A file of weights for the graph of this fingerprint; `other` names the one beside it, which may be whole."""

    path: Path
    graph: str
    other: str

    def save_weights(self, weights: Mapping[str, Tensor], state: State) -> None:
        self._write(weights, {"update": state.update, "validation": state.latest})

    def load_weights(self, model: torch.nn.Module, but: Collection[str] = ()) -> None:
        """All of them, `but` some."""
        tensors, _ = self._read(but=but)
        self._load({name: one for name, one in model.state_dict().items() if name not in but}, tensors)

    def mapped(self, names: Collection[str]) -> dict[str, Tensor]:
        """Some of the weights where they lie in the file, of which only what is looked at comes into memory."""
        self._read(header=True)  # where something is wrong with the file, that says what
        try:
            with self.path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length))
            return {name: _mapped(self.path, 8 + length, header[name]) for name in names}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise self._unreadable(error) from error

    def map_weights(self, model: torch.nn.Module) -> None:
        """Give a model, which may be one without memory of its own, the file's memory for its weights.

        Nothing is read before it is used, and so no number is checked.
        """
        tensors, _ = self._read()
        self._check_forms(model.state_dict(), tensors)
        model.load_state_dict(tensors, assign=True)

    def save_training(self, saved: Saved, state: State) -> None:
        generator = saved.generator
        rows = saved.rows
        tensors = {f"model.{name}": tensor for name, tensor in saved.weights().items()}
        for number, moments in saved.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": value for name, value in moments.items()}
        if rows is not None:
            rows.flush()
            tensors |= {f"rows.{name}": tensor for name, tensor in rows.state().items()}
        tensors["random.stream"] = generator.get_state()
        tensors["random.torch"] = torch.get_rng_state()
        if generator.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(generator.device)
        number = 0 if rows is None else rows.checkpoint + 1
        about = {"device": generator.device.type, "table": saved.table, "rows": number, "state": asdict(state)}
        self._write(tensors, about)
        if rows is not None:
            rows.settle(number)

    def load_training(self, saved: Saved) -> State:
        """Bring all of it to where it was saved.

        Another kind of device cannot continue the random numbers of the one that saved: the draws go on from numbers
        of their own, neither those of the start nor those that would have come.
        """
        tensors, about = self._read()
        generator = saved.generator
        device, state = self._device_and_state(about)
        self._load(saved.weights(), _below("model.", tensors))
        try:
            if saved.rows is not None:
                self._load(saved.rows.state(), _below("rows.", tensors))
                saved.rows.recover(int(about["rows"]))
            _load_moments(saved.optimiser, _below("optimiser.", tensors))
            torch.set_rng_state(tensors["random.torch"])
            if device != generator.device.type:
                generator.manual_seed(generator.initial_seed() + state.update)
            else:
                generator.set_state(tensors["random.stream"])
                if device == "cuda":
                    torch.cuda.set_rng_state(tensors["random.cuda"], generator.device)
        except (LookupError, ValueError, TypeError, RuntimeError) as error:
            raise self._unreadable(error) from error
        return state

    def table(self) -> TableName:
        """Where the entities' tables of a training were."""
        found: TableName = self._read(header=True)[1].get("table", "whole")
        if found not in get_args(TableName):
            raise self._unreadable(f"it has no table {clipped(repr(found))}")
        return found

    def device_and_state(self) -> tuple[str, State]:
        """The kind of device that a training was saved on, and its state; no tensor is read."""
        return self._device_and_state(self._read(header=True)[1])

    def _device_and_state(self, about: Mapping[str, Any]) -> tuple[str, State]:
        if about.get("device") not in _DEVICES:
            raise self._unreadable(f"it does not say whether it was saved on {' or '.join(_DEVICES)}")
        try:
            return about["device"], State.from_json(about.get("state"))
        except ValueError as error:
            raise self._unreadable(error) from error

    def _write(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        document = {"format": _FORMAT, "graph": self.graph, **about}
        try:
            with new_file(self.path) as partial:
                write_tensors(partial, tensors, {"about": json.dumps(document)})
        except OSError as error:
            raise unwritten(self.path, error) from error

    def _read(self, *, header: bool = False, but: Collection[str] = ()) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors of the file (none for its `header` alone, or all `but` some), and the document with them."""
        try:
            with safe_open(self.path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["about"])
                keys = [] if header else [key for key in file.keys() if key not in but]  # noqa: SIM118
                tensors = {key: file.get_tensor(key) for key in keys}
        except FileNotFoundError as error:
            folder, name = self.path.parent, self.path.name
            raise RunError(
                f"{folder} has no {name}: nothing was saved yet; go on with q2p train --resume {folder}"
            ) from error
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise self._unreadable(error) from error
        if not isinstance(about, dict):
            raise self._unreadable("what it says about itself is no object")
        if about.get("format") != _FORMAT:
            raise RunError(f"{self.path} is in format {quoted(about.get('format'))}, this version reads {_FORMAT}")
        if about.get("graph") != self.graph:
            raise RunError(
                f"{self.path} holds weights for another graph than the one that config.json beside it names; put back "
                "the file that was there, or train it again"
            )
        return tensors, about

    def _load(self, own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Write weights over one's own; such as were kept in bfloat16 become what these are."""
        self._check_forms(own, weights)
        if not all(map(_is_finite, weights.values())):
            raise self._unreadable("it holds weights that are no numbers")
        with torch.no_grad():
            for key, tensor in own.items():
                tensor.copy_(weights[key])

    def _check_forms(self, own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        differing = sorted(key for key in weights.keys() | own.keys() if not _fits(weights.get(key), own.get(key)))
        if differing:
            raise RunError(
                f"the weights in {self.path} do not fit config.json beside them ({quoted(differing[0])}); "
                "put back the file that was there, or train it again"
            )

    def _unreadable(self, reason: object) -> RunError:
        return RunError(
            f"{self.path} cannot be read ({quoted(reason)}); copy it from a backup, or train again "
            f"({self.other} beside it may be whole)"
        )


def _fits(weights: Tensor | None, own: Tensor | None) -> bool:
    if weights is None or own is None:
        return False
    return weights.shape == own.shape and weights.dtype in (own.dtype, torch.bfloat16)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file, block by block: the library's own writer holds the whole of it in memory once more.

    Wider types come first, so that each tensor starts at a multiple of what its numbers take.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    data = json.dumps(header).encode()
    data += b" " * (-len(data) % 8)
    with path.open("wb") as file:
        file.write(len(data).to_bytes(8, "little") + data)
        for _, tensor in ordered:
            write_blocks(file, tensor.detach())


def write_blocks(file: BinaryIO, tensor: Tensor) -> None:
    for block in _blocks(tensor):
        file.write(block.cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def _mapped(path: Path, start: int, about: Mapping[str, Any]) -> Tensor:
    """A tensor of a safetensors file, from what its header says of it."""
    dtype = next(one for one, name in _TYPES.items() if name == about["dtype"])
    first, last = about["data_offsets"]
    # Private pages: nothing that is written to them gets into the file.
    data = np.memmap(path, np.uint8, mode="c", offset=start + first, shape=(last - first,))
    return torch.from_numpy(data).view(dtype).view(about["shape"])


def _is_finite(tensor: Tensor) -> bool:
    return all(bool(block.isfinite().all()) for block in _blocks(tensor.detach()))


def _blocks(tensor: Tensor) -> Iterator[Tensor]:
    """Some rows at a time: what is made of a whole table may be more than there is memory for."""
    rows = tensor if tensor.dim() else tensor[None]
    together = max(1, _BLOCK_BYTES // max(1, rows[:1].numel() * rows.element_size()))
    for start in range(0, len(rows), together):
        yield rows[start : start + together]


def unwritten(path: Path, reason: object) -> RunError:
    return RunError(
        f"{path} could not be written ({quoted(reason)}); what was saved before is still there. "
        f"Make room, then go on with q2p train --resume {path.parent}"
    )


def quoted(text: object) -> str:
    """What a file or an error says, fit for a message."""
    return printable(clipped(str(text), 120))


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
