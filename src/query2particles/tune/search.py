"""The work at a search: trials are claimed, trained and written down, by as many processes as there are."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from time import sleep

import torch

from query2particles.config import Training
from query2particles.endings import Stopping, stop_signals
from query2particles.errors import RunError, TrainingError, UsageError, WorkloadError
from query2particles.files import new_file
from query2particles.graph.graph import Graph
from query2particles.provenance import commit, machine
from query2particles.run import Run, is_run_folder
from query2particles.train import Progress, train, validation_set
from query2particles.tune.plan import Outcome, Plan, name_of
from query2particles.workload.labels import Labelled

__all__ = ["BEST", "RUNS", "Tuned", "tune"]

BEST, RUNS = "best.toml", "runs"
_PLAN, _TRIALS, _CLAIMS = "search.json", "trials.jsonl", "claims"
_SECONDS_BETWEEN_LOOKS = 0.5
"""While all runs of a rung are in other hands."""

Watch = Callable[[int], AbstractContextManager[Callable[[Progress], object]]]
"""From the updates of a training to what hears how far it is."""


@dataclass(frozen=True)
class Tuned:
    """The trainings that are over, and the best of the longest; with the signal that ended the search early."""

    outcomes: Sequence[Outcome]
    best: Outcome | None
    signal: int | None


def tune(
    folder: Path,
    plan: Plan,
    graph: Graph,
    graph_folder: str,
    *,
    device: str = "cpu",
    say: Callable[[str], object] = lambda _: None,
    watch: Watch = lambda _: nullcontext(lambda _: None),
) -> Tuned:
    """Work at a search, new or begun, until it is over; other processes may do so at the same time."""
    _begin(folder, plan)
    worker = _Worker(folder, plan, graph, graph_folder, device, commit(), say, watch)
    told = 0
    with stop_signals() as stopping:
        while stopping.signal is None:
            outcomes = _read(folder)
            for one in outcomes[told:]:
                say(f"trial {one.trial}, {one.updates:,} updates: {one.words}")
            told = len(outcomes)
            _drop_weights(folder, outcomes)
            pending = plan.pending(outcomes)
            if not pending:
                break
            for trial, updates in pending:
                with _claimed(folder, trial, updates) as mine:
                    if mine:
                        worker.train(trial, updates, stopping)
                        break
            else:
                sleep(_SECONDS_BETWEEN_LOOKS)
    best = _best(outcomes := _read(folder))
    if stopping.signal is None:
        if best is None:
            raise TrainingError(
                f"every trial was lost, the first because of this: {outcomes[0].lost}. Search other settings "
                "(--search), into another folder (--out)"
            )
        with new_file(folder / BEST) as partial:
            partial.write_text(plan.as_toml(best), "utf-8")
    return Tuned(outcomes, best, stopping.signal)


def _begin(folder: Path, plan: Plan) -> None:
    """Write the plan down; where there is one already, it has to be the same."""
    path = folder / _PLAN
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder (--out)")
    there_before = folder.exists() and any(".partial-" not in each.name for each in folder.iterdir())
    if there_before and not path.exists():
        raise UsageError(f"{folder} is not empty, and holds no search; name a new folder (--out)")
    own = json.loads(json.dumps(plan.as_json()))
    with new_file(path) as partial:  # one process at a time: the first one's plan counts
        partial.write_text(path.read_text("utf-8") if path.exists() else json.dumps(own, indent=1) + "\n", "utf-8")
    try:
        stored = json.loads(path.read_text("utf-8"))
        defaults = asdict(Training())  # of settings that came after the plan
        one, other = ({**defaults, **document, **document["settings"], "settings": None} for document in (own, stored))
        changed = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read; restore it, or search anew, into another folder (--out)") from error
    if changed:
        raise UsageError(
            f"{folder} holds a search of another plan ({', '.join(changed)}): go on with the options that it was begun "
            "with, or name a new folder (--out)"
        )


@dataclass(frozen=True)
class _Worker:
    """What trains the trials of one process."""

    folder: Path
    plan: Plan
    graph: Graph
    graph_folder: str
    device: str
    commit: str | None
    say: Callable[[str], object]
    watch: Watch

    def train(self, trial: int, updates: int, stopping: Stopping) -> None:
        """Train one trial to its end, and write down what it gave; or to a signal, which is passed on."""
        validation = self._validation
        if stopping.signal is not None:  # it came while that was drawn
            return
        settings, place = self.plan.points[trial], self.folder / RUNS / name_of(trial, updates)
        self.say(f"trial {trial}, {updates:,} updates: {', '.join(f'{key} {one}' for key, one in settings.items())}")
        if is_run_folder(place):
            run = Run.open(place)
        else:
            run = Run.create(place, self.plan.config_of(trial, updates), self.graph, self.graph_folder)
        mrr = lost = None
        try:
            with self.watch(updates) as report:
                how = train(
                    run,
                    self.graph,
                    device=self.device,
                    validation=validation,
                    on_progress=report,
                    on_note=lambda words: self.say(f"note: trial {trial}: {words}"),
                )
            if how.signal is not None:
                stopping.signal = how.signal
                return
            if (mrr := how.best_mrr) is None:
                raise WorkloadError(f"{run.config.method} can answer no validation query: nothing says what is better")
        except TrainingError as error:
            lost = str(error)
        if self.device != "cpu":  # other processes may need what this one no longer does
            gc.collect()
            torch.cuda.empty_cache()
        seconds, memory = run.cost()
        outcome = Outcome(trial, updates, settings, mrr, lost, seconds, memory, machine(self.device), self.commit)
        path = self.folder / _TRIALS
        with new_file(path) as partial:  # one process at a time: no line is lost
            lines = path.read_text("utf-8") if path.exists() else ""
            partial.write_text(f"{lines}{json.dumps(asdict(outcome))}\n", "utf-8")

    @cached_property
    def _validation(self) -> Labelled:
        """The same queries for all trials."""
        found = validation_set(self.graph, self.plan.config.training)
        if found is None:
            raise WorkloadError(f"{self.graph.name} yields no validation query: nothing says what is better")
        return found


def _read(folder: Path) -> list[Outcome]:
    path = folder / _TRIALS
    try:
        return [Outcome(**json.loads(line)) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    except (ValueError, TypeError) as error:
        raise RunError(f"{path} cannot be read; restore it, or search anew, into another folder (--out)") from error


def _best(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Of the longest trainings that were not lost."""
    sound = [one for one in outcomes if one.lost is None]
    return max(sound, key=lambda one: (one.updates, one.score, -one.trial), default=None)


def _drop_weights(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Keep those of the best run alone: all would soon fill a disk."""
    best = _best(outcomes)
    for one in outcomes:
        if one != best:
            for path in (folder / RUNS / one.name).glob("*.safetensors"):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _claimed(folder: Path, trial: int, updates: int) -> Iterator[bool]:
    """Whether a trial is this process's to train: neither held by another, unless there are no locks, nor over."""
    path = folder / _CLAIMS / name_of(trial, updates)
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = False
        except OSError as error:
            held = error.errno in (errno.EWOULDBLOCK, errno.EACCES)
        yield not held and all(one.name != path.name for one in _read(folder))
