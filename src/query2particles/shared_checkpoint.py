"""The state of a training of several processes on disk: a folder that each of them writes its shards to, by
torch.distributed.checkpoint, and that any number of processes, also one alone, can go on from.

    about.json      as of `checkpoint`: format, graph, device, table, state; and which moments there are
    *.distcp        tensors, by name: weights, moments, random states

The folder is written beside its place and exchanged for the old one in one step, as any other.
"""

from __future__ import annotations

import json
import warnings
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from query2particles.checkpoint import Saved, State, quoted
from query2particles.config import TableName
from query2particles.distributed import Group
from query2particles.engine.shards import share_of
from query2particles.errors import RunError
from query2particles.files import new_folder

__all__ = ["SharedCheckpoint"]

_FORMAT = 1
_ABOUT = "about.json"


def _is_own(name: str) -> bool:
    return name in (_ABOUT, ".metadata") or name.endswith(".distcp")


@dataclass(frozen=True)
class SharedCheckpoint:
    """A folder for the graph of this fingerprint."""

    path: Path
    graph: str

    def save(self, saved: Saved, state: State, group: Group) -> None:
        """All processes together."""
        from torch.distributed.checkpoint.state_dict_saver import save

        tensors = _named(saved, group, _moments_of(saved))
        with ExitStack() as stack:
            folder = None
            if group.leads:
                folder = stack.enter_context(new_folder(self.path, replaces=_is_own))
                about = {
                    "format": _FORMAT,
                    "graph": self.graph,
                    "device": saved.generator.device.type,
                    "table": saved.table,
                    "moments": _moments_of(saved),
                    "state": asdict(state),
                }
                (folder / _ABOUT).write_text(json.dumps(about), "utf-8")
            with _without_warnings():
                save(tensors, checkpoint_id=group.told(folder))
            group.wait()

    def load(self, saved: Saved, group: Group | None) -> State:
        """Bring all of it to where it was saved, by as many processes as there are now.

        Dropout goes on from numbers of its own; batches and negatives are those that would have come.
        """
        from torch.distributed.checkpoint.state_dict_loader import load

        about = self._about()
        state = self._state(about)
        moments = {str(name): [str(one) for one in several] for name, several in about["moments"].items()}
        tensors = _named(saved, group, moments)
        generator = saved.generator
        same = about["device"] == generator.device.type
        if not same:
            del tensors["random.stream"]
        try:
            with _without_warnings():
                load(tensors, checkpoint_id=self.path, no_dist=group is None)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise self._unreadable(error) from error
        if same:
            generator.set_state(tensors["random.stream"])
        else:
            generator.manual_seed(generator.initial_seed() + state.update)
        torch.manual_seed(generator.initial_seed() + state.update + (0 if group is None else group.rank))
        return state

    def device_and_state(self) -> tuple[str, State]:
        about = self._about()
        return str(about["device"]), self._state(about)

    def table(self) -> TableName:
        found: TableName = self._about()["table"]
        return found

    def _about(self) -> dict[str, Any]:
        try:
            about = json.loads((self.path / _ABOUT).read_text("utf-8"))
            if about["format"] != _FORMAT or about["graph"] != self.graph:
                raise RunError(f"{self.path} is of another version or another graph; train it again")
            found: dict[str, Any] = {key: about[key] for key in ("device", "table", "moments", "state")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unreadable(error) from error
        return found

    def _state(self, about: dict[str, Any]) -> State:
        try:
            return State.from_json(about["state"])
        except ValueError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, reason: object) -> RunError:
        return RunError(f"{self.path} cannot be read ({quoted(reason)}); copy it from a backup, or train again")


def _moments_of(saved: Saved) -> dict[str, list[str]]:
    """Of each parameter that has moved, what the optimiser remembers of it."""
    return {
        name: list(saved.optimiser.state[one])
        for name, one in saved.parameters().items()
        if saved.optimiser.state.get(one)
    }


def _named(saved: Saved, group: Group | None, moments: dict[str, list[str]]) -> dict[str, Any]:
    """All tensors by name, those with a row for each entity as shards; the optimiser gets room for these moments."""
    tables = {} if saved.rows is None else dict(saved.rows.whole_tables())
    parameters = saved.parameters()
    found: dict[str, Any] = {f"model.{name}": one.detach() for name, one in parameters.items()}
    found |= {f"model.{name}": one for name, one in tables.items()}
    for name, several in moments.items():
        own = saved.optimiser.state[parameters[name]]
        for moment in several:
            like = parameters[name].detach()
            if moment not in own:
                own[moment] = torch.zeros((), device=like.device) if moment == "step" else torch.zeros_like(like)
            found[f"optimiser.{name}.{moment}"] = own[moment]
    if saved.rows is not None and saved.table != "whole":
        found |= {"rows.squares": saved.rows.squares[:-1], "rows.touched": saved.rows.touched[:-1]}
    if group is not None:
        for key, tensor in found.items():
            part, name, *_ = key.split(".")
            if tensor.dim() and (part == "rows" or name in tables):
                found[key] = _sharded(tensor, saved.entities, group)
    found["random.stream"] = saved.generator.get_state()
    return found


def _sharded(local: Tensor, entities: int, group: Group) -> Any:
    """A shard as part of the whole: rows of `share_of` each, which is how torch splits them, too."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    assert len(local) <= share_of(entities, group.size)
    mesh = init_device_mesh(local.device.type, (group.size,))
    shape = torch.Size((entities, *local.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def _without_warnings() -> Any:
    """What torch says of its own ways is nothing that a person who trains can do about."""
    return warnings.catch_warnings(action="ignore")
