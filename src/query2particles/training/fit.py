"""From a graph to a run that answers: choose sizes, train, join, give answers probabilities.

What `query2particles.fit` and `q2p train` have in common; they differ in who listens.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from query2particles.calibration import (
    RELIABILITY,
    Calibration,
    plot_reliability,
    questions_for,
    save_calibration,
    weights_digest,
)
from query2particles.calibration import calibrate as fit_probabilities
from query2particles.config import Config, configured, key_of
from query2particles.distributed import Group
from query2particles.errors import TrainingError, UsageError, WorkloadError
from query2particles.graph.graph import Graph
from query2particles.joined import PARTS, Joined, check_place, join, settings_of, weighing
from query2particles.joining import Effort, FamilyFit, queries_asked
from query2particles.methods.registry import attach_stored
from query2particles.planning import Budget, Plan, grown, plan_part
from query2particles.presets import preset as preset_named
from query2particles.query.algebra import SHAPES
from query2particles.run import Run, is_run_folder
from query2particles.train import Progress, Trained, train, validation_set
from query2particles.workload.labels import Labelled

__all__ = [
    "BEST",
    "SILENT",
    "Fit",
    "InterruptedTrainingError",
    "Listener",
    "calibrate_run",
    "calibrate_where_possible",
    "check_minutes",
    "fit_best",
    "fit_one",
    "join_watched",
    "planned",
    "train_watched",
]

BEST = "best"

Count: TypeAlias = Callable[[int], object]

_SECONDS = 60.0
"""How long probabilities are made on a CPU where no time is given."""

_OF_VECTORS = 0.25
"""The share of that time for the vectors alone."""


@contextlib.contextmanager
def _no_bar(what: str, total: int | None) -> Any:
    del what, total
    yield lambda _: None


@contextlib.contextmanager
def _no_training(updates: int) -> Any:
    del updates
    yield lambda _: None


@dataclass(frozen=True)
class Listener:
    """Who hears how a fit goes; by default nobody."""

    note: Callable[[str], object] = lambda _: None
    """A sentence for a person."""
    bar: Callable[[str, int | None], AbstractContextManager[Count]] = _no_bar
    """What is done, and of how many; then called with how many more are done."""
    training: Callable[[int], AbstractContextManager[Callable[[Progress], object]]] = _no_training
    """How many updates there are; then called with how far training is."""
    trained: Callable[[Run, Graph, Trained], object] = lambda *_: None
    """A part is trained, or was stopped."""
    stoppable: Callable[[str, str], AbstractContextManager[None]] = lambda *_: contextlib.nullcontext()
    """What is done, and how to go on from there: what Ctrl-C does inside."""


SILENT = Listener()


class InterruptedTrainingError(TrainingError):
    """Training was stopped by a signal; everything so far is saved in `folder`."""

    def __init__(self, signal: int, folder: Path, part: str = "") -> None:
        self.signal, self.folder, self.part = signal, folder, part
        super().__init__(f"training was stopped by signal {signal}; {folder} holds what was trained so far")


@dataclass(frozen=True)
class Fit:
    """What is to be trained, and where."""

    graph: Graph
    graph_folder: str
    """Where the run finds its graph again."""
    folder: Path
    preset: str
    settings: Sequence[str] = ()
    """As KEY=VALUE; of `best` for both parts, or for one where its name and a dot come first: vectors.updates=1000."""
    device: str = "cpu"
    minutes: float | None = None
    """Everything is to be done so many minutes after `begin`, a time of `time.perf_counter`."""
    begin: float = 0.0

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.begin


def check_minutes(minutes: float | None, settings: Sequence[str]) -> None:
    """Refuse a time that is none, and updates beside it."""
    if minutes is None:
        return
    if not 0 < minutes < math.inf:
        raise UsageError(f"--minutes is a number above 0, not {minutes:g}")
    if any(key_of(setting).rpartition(".")[2] == "updates" for setting in settings):
        raise UsageError("--minutes says how many updates there are: leave out it, or updates")


def note_plan(plan: Plan, minutes: float, listener: Listener) -> None:
    """Say what was chosen for so many minutes, and where they are few."""
    listener.note(f"note: for {minutes:g} minutes on this machine: {plan}")
    if (enough := plan.minutes_that_suffice(minutes)) is not None:
        listener.note(
            f"note: that is short for this graph, whose facts are hardly seen twice; better take --minutes {enough}"
        )


def train_watched(
    run: Run,
    graph: Graph,
    device: str,
    listener: Listener,
    reports: Sequence[Callable[[Progress], object]] = (),
    group: Group | None = None,
) -> Trained:
    """Train a run to its end, or to a signal; of several processes one is listened to."""
    if group is not None and not group.leads:
        return train(run, graph, device=device, group=group)
    with listener.training(run.config.training.updates) as show:
        return train(
            run,
            graph,
            device=device,
            group=group,
            on_progress=lambda progress: [report(progress) for report in (show, *reports)],
            on_note=lambda words: listener.note(f"note: {words}"),
        )


def calibrate_run(
    run: Run, graph: Graph, device: str, seconds: float | None = None, listener: Listener = SILENT
) -> Calibration:
    """Learn a run's probabilities from natural questions, and save them with their picture, where it can be drawn.

    On a CPU, no more questions are asked than fit into the `seconds`.
    """
    training = run.config.training
    if not training.holds_out:
        facts = "all facts, those of validation among them" if training.all_edges else "validation facts, too"
        raise UsageError(
            f"{run.folder} was trained on {facts}: nothing is left to learn from how sure it may be. Train a run "
            f"without {'--all-edges' if training.all_edges else 'valid_edges'}"
        )
    weights = weights_digest(run)  # taken first: should training save newer ones meanwhile, they have no calibration
    model, stored = run.model(graph, device), graph.without("valid")
    attach_stored(model, stored)
    asked = questions_for(len(graph.entities), device, seconds)
    with listener.bar("calibrating", asked["one_hop"] + asked["longer"] * (len(SHAPES) - 1)) as progress:
        fitted, judged = fit_probabilities(
            model, stored, graph.at("test"), **asked, unions=training.unions, progress=progress
        )
    saved = save_calibration(run, replace(fitted, weights=weights))
    if find_spec("matplotlib") is not None:  # a machine that only trains needs none
        title = f"{run.folder.name}: what guesses claim and what comes true, on questions that no fit had seen"
        plot_reliability(judged, run.folder / RELIABILITY, title=title)
    return saved


def calibrate_where_possible(
    run: Run, graph: Graph, device: str, listener: Listener, then: str = "", seconds: float | None = None
) -> None:
    """Let the run say how sure it is of its answers; where no facts or too few tell, it goes without.

    `then` is what else to do for whoever stops it, and `seconds` how long it may take.
    """
    advice = f"The run is saved. To go on:  q2p calibrate {run.folder}{then}"
    try:
        with listener.stoppable("answers were given probabilities", advice):
            calibrate_run(run, graph, device, seconds, listener)
    except (UsageError, WorkloadError) as error:
        listener.note(f"note: answers of this run will carry no probabilities: {error}")


def planned(
    config: Config, graph: Graph, device: str, minutes: float, spent: float, fixed: Collection[str], listener: Listener
) -> Config:
    """The settings of one method in a size that is trained in so many minutes, of which some seconds are `spent`."""
    plan = plan_part(config, graph, device, minutes, spent=spent, fixed=fixed)
    note_plan(plan, minutes, listener)
    return plan.config


def fit_one(fit: Fit, method: str, listener: Listener = SILENT) -> Run:
    """Train one method, and give its answers probabilities."""
    check_minutes(fit.minutes, fit.settings)
    config = configured(preset_named(method, fit.preset), None, fit.settings)
    fixed = set(map(key_of, fit.settings))
    config = grown(config, fit.graph, fit.device, fixed)
    if fit.minutes is not None:
        config = planned(config, fit.graph, fit.device, fit.minutes, fit.spent, fixed, listener)
    run = Run.create(fit.folder, config, fit.graph, fit.graph_folder)
    trained = train_watched(run, fit.graph, fit.device, listener)
    listener.trained(run, fit.graph, trained)
    if trained.signal is not None:
        raise InterruptedTrainingError(trained.signal, run.folder)
    seconds = None if fit.minutes is None else Budget.of(fit.minutes, joined=False).probabilities
    calibrate_where_possible(run, fit.graph, fit.device, listener, seconds=seconds)
    return run


def fit_best(fit: Fit, listener: Listener = SILENT) -> tuple[Joined, Mapping[int, FamilyFit]]:
    """Train the parts, one after the other, and join them; what an earlier call has finished is not done again."""
    check_minutes(fit.minutes, fit.settings)
    graph, minutes = fit.graph, fit.minutes
    configs = _configs(fit)
    if not all(config.training.can_be_judged for config in configs.values()):
        raise UsageError(
            "best needs facts to weigh its parts by: leave out valid_edges, all_edges and leaked; of parts that are "
            "trained again, with more facts, q2p join --as makes one"
        )
    validation = weighing(validation_set(graph, configs["vectors"].training), graph)  # refused before all is trained
    check_place(fit.folder, *(fit.folder / part for part in PARTS))

    budget = None if minutes is None else Budget.of(minutes, joined=True)
    for_probabilities = _SECONDS if budget is None else budget.probabilities

    def run_of(part: str) -> Run:
        config = configs[part] if minutes is None else _planned(fit, part, configs[part], minutes, listener)
        return _run_of(fit.folder / part, config, graph, fit.graph_folder)

    # What fits into a time is only known when it comes to a part; otherwise wrong settings are refused at once.
    runs = {part: run_of(part) for part in PARTS} if minutes is None else {}
    for part in PARTS:
        run = runs[part] = runs.get(part) or run_of(part)
        saved = run.saved()
        if saved is not None and saved[1].finished(run.config.training):
            listener.note(f"{run.folder} is finished.")
            continue
        trained = train_watched(run, graph, fit.device, listener)
        listener.trained(run, graph, trained)
        if trained.signal is not None:
            raise InterruptedTrainingError(trained.signal, fit.folder, part)
        if part == "vectors":  # which answer alone, too (--method fast)
            then, own = "  and then the same command", _OF_VECTORS * for_probabilities
            calibrate_where_possible(run, graph, fit.device, listener, then, own)
    seconds = None
    if budget is not None and minutes is not None:
        seconds = budget.left_for_weighing(60 * minutes - fit.spent)
        validation = weighing(validation_set(graph, runs["vectors"].config.training), graph)
    again = "The parts are saved; the same command goes on."
    last = (1 - _OF_VECTORS) * for_probabilities
    vectors, links = runs["vectors"], runs["links"]
    return join_watched(fit.folder, vectors, links, graph, validation, fit.device, listener, again, seconds, last)


def join_watched(
    folder: Path,
    vectors: Run,
    links: Run,
    graph: Graph,
    validation: Labelled | None,
    device: str,
    listener: Listener,
    again: str,
    seconds: float | None = None,
    for_probabilities: float | None = None,
) -> tuple[Joined, Mapping[int, FamilyFit]]:
    """Join two runs, and give the answers of the joined run probabilities.

    `again` says how to go on from where the weighing is stopped; `seconds` how long it may take, and
    `for_probabilities` how long what follows may.
    """
    count = None
    if validation is not None and seconds is None:
        count = queries_asked(validation[0], Effort.on(device, len(graph.entities)))
    with listener.stoppable("the parts were weighed", again), listener.bar("weighing the parts", count) as progress:
        joined, fits = join(
            folder, vectors, links, graph, validation, device=device, seconds=seconds, progress=progress
        )
    calibrate_where_possible(joined, graph, device, listener, seconds=for_probabilities)
    return joined, fits


def _configs(fit: Fit) -> dict[str, Config]:
    """The settings of each part, in sizes that suit the graph."""
    own = {part: settings_of(part, fit.settings) for part in PARTS}
    starts = {part: configured(preset_named(method, fit.preset), None, own[part]) for part, method in PARTS.items()}
    return {part: grown(start, fit.graph, fit.device, set(map(key_of, own[part]))) for part, start in starts.items()}


def _planned(fit: Fit, part: str, config: Config, minutes: float, listener: Listener) -> Config:
    """The settings of a part that fit into the time.

    What an earlier call has planned stays as it is: a training that goes on ends as if it had been left alone.
    """
    own = settings_of(part, fit.settings)
    if is_run_folder(fit.folder / part):
        return configured(Run.open(fit.folder / part).config, None, own)
    later = list(PARTS.values())[list(PARTS).index(part) + 1 :]
    fixed = set(map(key_of, own))
    plan = plan_part(config, fit.graph, fit.device, minutes, spent=fit.spent, fixed=fixed, joined=True, later=later)
    note_plan(plan, minutes, listener)
    return plan.config


def _run_of(folder: Path, config: Config, graph: Graph, graph_folder: str) -> Run:
    """A new run, or the one that is there already."""
    if not is_run_folder(folder):
        return Run.create(folder, config, graph, graph_folder)
    run = Run.open(folder)
    run.check_facts(graph)
    if run.config != config.with_absolute_paths():
        raise UsageError(f"{folder} has other settings than these; name another folder (--out), or the same settings")
    return run
