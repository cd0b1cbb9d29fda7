"""What a search tries: a space of settings, points of it, and how many of them are trained for how long."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from query2particles.config import Config, configured
from query2particles.errors import UsageError, clipped
from query2particles.graph.graph import Graph

__all__ = ["ETA", "PAPER_GRID", "SPACE", "TRIALS", "Outcome", "Plan", "name_of", "planned"]

SPACE: Mapping[str, Sequence[Any]] = MappingProxyType(
    {
        "rate": (1e-3, 2e-3, 3e-3, 5e-3, 1e-2),
        "batch": (512, 1024, 2048, 4096),
        "smoothing": (0.0, 0.3, 0.5, 0.7),
        "decay": (0.0, 0.3, 1.0, 2.0),
        "dropout": (0.0, 0.1, 0.2, 0.3),
        "n3": (0.01, 0.03, 0.1, 0.3),
    }
)
"""What is searched unless --search says otherwise: of these, the settings that the method has."""

PAPER_GRID: Mapping[str, Sequence[Any]] = MappingProxyType(
    {
        "batch": (1024, 2048, 4096, 8192),
        "dropout": (0.1, 0.2, 0.3),
        "rate": (1e-4, 3e-4, 1e-3),
        "smoothing": (0.3, 0.5, 0.7),
    }
)
"""What the paper searched."""

TRIALS, ETA = 18, 3

_NOT_TO_SEARCH = {
    "updates": "each rung has its own; --set updates=… says how many the last one has",
    "seed": "the luckiest one is no setting; --seed names one for all trials",
    "mix": "its values have commas themselves; --set it",
    **dict.fromkeys(("valid_edges", "all_edges", "leaked", "leaked_share"), "nothing would be held out for validation"),
    **dict.fromkeys(("validation", "validation_queries"), "all trials answer the same queries; --set it"),
}


@dataclass(frozen=True)
class Outcome:
    """How one training of a trial has ended."""

    trial: int
    updates: int
    settings: Mapping[str, Any]
    mrr: float | None
    """The best validation in percent; None where the trial was lost."""
    lost: str | None
    """Why: its loss became no number, or memory ran out."""
    seconds: float
    gpu_memory_gib: float
    machine: str
    commit: str | None

    @property
    def name(self) -> str:
        """Of its run folder."""
        return name_of(self.trial, self.updates)

    @property
    def score(self) -> float:
        return -math.inf if self.mrr is None else self.mrr

    @property
    def words(self) -> str:
        return f"validation MRR {self.mrr:.2f}" if self.mrr is not None else f"lost: {self.lost}"


@dataclass(frozen=True)
class Plan:
    """What is tried: `points`, settings that replace those of `config`; ever fewer of them for ever more updates."""

    graph: Mapping[str, Any]
    config: Config
    space: Mapping[str, Sequence[Any]]
    points: Sequence[Mapping[str, Any]]
    rungs: Sequence[tuple[int, int]]
    """How many trials, and for how many updates; from one rung to the next the best go on."""

    def as_json(self) -> dict[str, Any]:
        config = self.config.as_json()
        return {
            "graph": self.graph,
            **{key: config[key] for key in ("method", "preset")},
            "settings": {**config["model"], **config["training"]},
            "search": self.space,
            "rungs": self.rungs,
            "trials": self.points,
        }

    def config_of(self, trial: int, updates: int | None = None) -> Config:
        """The settings of a trial, whole or for a rung."""
        config = configured(self.config, None, [f"{key}={value}" for key, value in self.points[trial].items()])
        whole = config.training
        updates = updates or whole.updates
        warm_up = round(whole.warm_up * updates / whole.updates)
        return configured(config, None, [f"updates={updates}", f"warm_up={warm_up}"])

    def pending(self, outcomes: Sequence[Outcome]) -> list[tuple[int, int]]:
        """The trials of the first rung that is not over, with its updates, as far as they are to be trained yet."""
        found = {(one.trial, one.updates): one for one in outcomes}
        entrants: Sequence[int] = range(len(self.points))
        for count, updates in self.rungs:
            entrants = entrants[:count]
            if missing := [(trial, updates) for trial in entrants if (trial, updates) not in found]:
                return missing
            over = sorted((found[trial, updates] for trial in entrants), key=lambda one: -one.score)
            entrants = [one.trial for one in over if one.lost is None]
        return []

    def as_toml(self, best: Outcome) -> str:
        """All settings of a trial, as a file for --config."""
        config = self.config_of(best.trial)
        lines = [
            f"# The best of {len(self.points)} trials on {json.dumps(self.graph['name'])}: "
            f"{best.words} after {best.updates} updates.",
            f"# Searched: {', '.join(f'{key} = {_value(value)}' for key, value in best.settings.items())}",
            f"# q2p train GRAPH --method {config.method} --config THIS --out RUN",
        ]
        for name, table in (("model", asdict(config.model)), ("training", asdict(config.training))):
            lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"


def name_of(trial: int, updates: int) -> str:
    return f"{trial:03}-{updates}"


def planned(
    start: Config,
    graph: Graph,
    *,
    settings: Sequence[str] = (),
    search: Sequence[str] = (),
    full: bool = False,
    trials: int = TRIALS,
    eta: int = ETA,
) -> Plan:
    """The plan of a search from these settings; `full` takes every point of the paper's grid, all updates long.

    `search` changes the space, by KEY=V1,V2,… each; what `settings` names is not searched.
    """
    config = configured(start, None, settings).with_absolute_paths()
    training = config.training
    if not training.can_be_judged:
        raise UsageError(
            "valid_edges, all_edges and leaked train on what would have to say which settings are better: leave them "
            "out"
        )
    if not (training.validation or graph.facts()["valid"]):
        raise UsageError(f"{graph.name} has no validation facts, and nothing else says which settings are better")
    fixed = {setting.partition("=")[0].strip().replace("-", "_") for setting in settings}
    space = _space(config, PAPER_GRID if full else SPACE, search, fixed)
    every = range(math.prod(map(len, space.values())))
    chosen = every if full or trials >= len(every) else random.Random(training.seed).sample(every, trials)
    counts = [len(chosen)]
    while not full and counts[-1] >= eta:
        counts.append(counts[-1] // eta)
    rungs = [(count, training.updates // eta ** (len(counts) - rung)) for rung, count in enumerate(counts, start=1)]
    if not rungs[0][1]:
        raise UsageError(
            f"{training.updates} updates are too few for {len(rungs)} rungs: set more, or take fewer --trials"
        )
    about = {"name": graph.name, "fingerprint": graph.fingerprint, "facts": graph.facts()}
    plan = Plan(about, config, space, [_point(space, number) for number in chosen], rungs)
    for trial in range(len(chosen)):
        plan.config_of(trial)  # settings that do not go together are refused now
    return plan


def _space(
    config: Config, start: Mapping[str, Sequence[Any]], search: Sequence[str], fixed: Collection[str]
) -> dict[str, list[Any]]:
    known = _settings(config)
    space = {key: list(values) for key, values in start.items() if key in known and key not in fixed}
    for words in search:
        name, equals, values = words.partition("=")
        key = name.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"--search takes KEY=V1,V2,…, such as rate=0.001,0.003; found {clipped(repr(words))}")
        if key in _NOT_TO_SEARCH:
            raise UsageError(f"{key} cannot be searched: {_NOT_TO_SEARCH[key]}")
        if key in fixed:
            raise UsageError(f"{key} is both set and searched; leave out --set {key}=… or --search {key}=…")
        several = [configured(config, None, [f"{key}={value}"]).with_absolute_paths() for value in values.split(",")]
        space[key] = list(dict.fromkeys(_settings(one)[key] for one in several))
    if not space:
        raise UsageError("there is nothing to search: every setting is set; name some with --search KEY=V1,V2,…")
    return space


def _settings(config: Config) -> dict[str, Any]:
    return {**asdict(config.model), **asdict(config.training)}


def _point(space: Mapping[str, Sequence[Any]], number: int) -> dict[str, Any]:
    """One of all points, which are counted like the digits of a number."""
    point = {}
    for key, values in space.items():
        number, digit = divmod(number, len(values))
        point[key] = values[digit]
    return point


def _value(value: Any) -> str:
    """As TOML writes it: but for tables, as JSON does."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_value(one)}' for key, one in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)
