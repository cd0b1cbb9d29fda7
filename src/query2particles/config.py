"""The settings of a training run: one place for each default, saved with the run, read back as they were.

A configuration is a method, the settings of its model and those of its training. It starts from a preset; a TOML file
and single settings (`--set key=value`) change it. Keys are the names of the fields below, those of the model and of
the training in one list.
"""

from __future__ import annotations

import difflib
import math
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from query2particles.engine.method import lacking
from query2particles.errors import UsageError, clipped
from query2particles.graph.graph import Graph, Split
from query2particles.methods.registry import METHODS, Model, make, trainee_of
from query2particles.query.algebra import SHAPES, Complement
from query2particles.query.rewrite import Unions

__all__ = ["Config", "TableName", "Training", "answered_by", "build", "changed", "configured", "extended", "key_of"]


TableName = Literal["auto", "whole", "device", "bf16", "host"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained."""

    updates: int = 4000
    """Steps of the optimiser."""
    batch: int = 1024
    """Queries in each."""
    rate: float = 3e-3
    """The highest learning rate (AdamW)."""
    warm_up: int = 400
    """Updates in which the rate rises from zero."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Whether the rate then falls to zero, along a cosine, or stays."""
    decay: float = 1.0
    """Weight decay of the tables, times the rate; operators do not decay."""
    clip: float = 1.0
    """The largest norm of a gradient."""
    loss: Literal["softmax", "margin"] = "softmax"
    """Cross-entropy, or that of the papers which measure distances: scores above 0 for answers, below for others."""
    negatives: int | Literal["auto"] = "auto"
    """How many random entities the answers of an update are set against; 0: all entities; auto: all, but 4096 where
    there are more than 200,000, and on a CPU 1024 from 4,000 on."""
    negatives_by: Literal["uniform", "degree"] = "uniform"
    """Whether every entity is as likely among them, or those with many facts are more so; the loss makes up for it."""
    table: TableName = "auto"
    """What of the entities' tables an update touches, and where they are (docs/scale.md): all of it; or, by rows, those
    of the batch, with the table in float32 or bfloat16 on the device, or in a file. auto: by rows where there are more
    than 200,000 entities, on a CPU 4,000, and `negatives`, wherever they fit."""
    subsampling: bool = False
    """Whether a query with a answers counts 1 / √a."""
    smoothing: float = 0.5
    """Label smoothing, uniform over all entities."""
    exclusion: float = 1.0
    """How much it counts that what a complement takes out of the answers scores below an answer (docs/methods.md)."""
    mix: Mapping[str, float] = field(
        default_factory=lambda: {
            **{"1p": 6.0, "2p": 1.5, "3p": 1.5, "2i": 1.0, "3i": 1.0},
            **{"2in": 0.3, "3in": 0.3, "inp": 0.3, "pin": 0.3, "pni": 0.3},
        }
    )
    """The weight of each shape in a batch."""
    edge_share: float = 1.0
    """The share of queries drawn edge by edge: answers then come as often as facts lead to them, and queries with many
    answers more often, as among those that a missing fact gives one more."""
    cap: int = 1_000_000
    """Queries with more answers than this, as far as a draw can tell, are not trained on."""
    union_share: float = 0.0
    """The share of 1p queries that become unions with another 1p query."""
    union_answers: Literal["any", "first"] = "any"
    """What is a positive of such a union: any answer, each as likely, so that scores tell how many there are; or one of
    the first query's, as in the released code, so that either branch counts as much."""
    inverted_complements: bool = False
    """As many complements of 1p queries as 1p queries, on top of the batch, trained with negated scores."""
    workload: str = ""
    """A folder of training queries; empty: queries are drawn without end."""
    leaked: str = ""
    """A folder of queries whose valid and test queries are trained on, with their hard answers, as the released code
    does with Query2Box's: to measure what that is worth. What is then measured on them is memory."""
    leaked_share: float = 0.1
    """The share of the queries of their shapes that come from there."""
    valid_edges: bool = False
    """Train on the facts of validation, too, once everything is chosen: nothing is left to validate by."""
    all_edges: bool = False
    """Train on the facts of all splits, for use rather than for measuring; there is no validation then."""
    unions: Unions = "native"
    """How unions are answered in validation: side by side, lifted to the root, or by complements."""
    stored: Literal["train", "valid"] = "train"
    """What methods that search take for stored when they answer: the training facts; or those of validation, too, which
    are known by the time that test questions are asked. Not a setting of training."""
    validation: str = ""
    """A folder of validation queries; empty: they are drawn from the graph's validation facts."""
    validate_every: int = 1000
    """Updates between two validations, each of which also saves."""
    checkpoint_every: int = 0
    """Updates between two saves, besides those of validations; 0: only those."""
    validation_queries: int = 300
    """Queries of each shape in a validation, at most."""
    patience: int = 0
    """Validations without a better mean MRR before training stops early; 0: never."""
    seed: int = 0

    @property
    def split(self) -> Split:
        """Of the nested splits, the one whose facts are trained on."""
        return "test" if self.all_edges else "valid" if self.valid_edges else "train"

    @property
    def facts(self) -> str:
        """The same in words."""
        return {"train": "training facts", "valid": "validation facts, too", "test": "all facts"}[self.split]

    @property
    def known(self) -> Split:
        """The one whose facts are stored when questions are asked: at least what is trained on."""
        return self.stored if self.holds_out else self.split

    @property
    def holds_out(self) -> bool:
        """Whether validation facts are not trained on, so that they can say what is better."""
        return self.split == "train"

    @property
    def can_be_judged(self) -> bool:
        """Whether validation queries, too, are not trained on: else what they say is better is what knows them."""
        return self.holds_out and not self.leaked


@dataclass(frozen=True, kw_only=True)
class Config:
    """A method, its preset's name, and all its settings."""

    method: str = "q2p"
    preset: str = "default"
    model: Any = field(default_factory=METHODS["q2p"].settings)
    """The settings of the method: those of its own class."""
    training: Training = field(default_factory=Training)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Config:
        """What `as_json` gave; settings that are not there take their defaults."""
        method = _checked("method", document.get("method", "q2p"), Literal[*METHODS])
        start = Config(
            method=method,
            preset=_checked("preset", document.get("preset", "default"), str),
            model=METHODS[method].settings(),
        )
        return changed(start, {**document.get("model", {}), **document.get("training", {})})

    def with_absolute_paths(self) -> Config:
        """The same settings, whatever folder they are read from; folders that are not there are refused."""
        paths = {name: getattr(self.training, name) for name in _FOLDERS}
        for name, path in paths.items():
            if path and not Path(path).is_dir():
                raise UsageError(
                    f"there is no folder {clipped(repr(path))} of queries ({name}); q2p sample draws one, and where it "
                    f"has moved, --set {name}=DIR says where to"
                )
        return changed(self, {name: str(Path(path).resolve()) for name, path in paths.items() if path})

    def with_bare_names(self) -> Config:
        """The same settings without where folders of queries lie on this machine, as results state them."""
        paths = {name: getattr(self.training, name) for name in _FOLDERS}
        bare: dict[str, Any] = {name: Path(path).resolve().name for name, path in paths.items() if path}
        return replace(self, training=replace(self.training, **bare))


_FOLDERS = ("workload", "leaked", "validation")
"""The settings that name folders of queries."""


def configured(start: Config, file: Path | None = None, settings: Sequence[str] = ()) -> Config:
    """The configuration with the changes of a TOML file, then with those of `key=value` settings."""
    if file is not None:
        try:
            document = tomllib.loads(file.read_text("utf-8"))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{file} is no TOML: {error}") from error
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error
        flat: dict[str, Any] = {}
        for key, value in document.items():
            flat.update(value if key in ("model", "training") and isinstance(value, dict) else {key: value})
        start = changed(start, flat, f"{file}: ")
    for setting in settings:
        if "=" not in setting:
            raise UsageError(f"--set takes key=value, found {clipped(repr(setting))}")
    pairs = {key_of(setting): setting.partition("=")[2].strip() for setting in settings}
    return changed(start, pairs)


def key_of(setting: str) -> str:
    """What a setting `key=value` is about."""
    return setting.partition("=")[0].strip().replace("-", "_")


def extended(config: Config, settings: Sequence[str]) -> Config:
    """The configuration of a run that goes on, with the changes that keep what it did so far.

    There may be more updates, and the folders of queries that it has may lie elsewhere. All else would make it a run
    that neither setting describes; a cosine has planned for its last update from the first one on.
    """
    later = configured(config, None, settings)
    before, after = config.training, later.training
    moved = {name: getattr(after, name) for name in _FOLDERS if getattr(before, name) and getattr(after, name)}
    if replace(config, training=replace(before, updates=after.updates, **moved)) != later:
        raise UsageError(
            "a resumed run keeps its settings: only updates can be set anew, and where its folders of queries are "
            f"({', '.join(_FOLDERS)}); for others train a new run"
        )
    if after.updates != before.updates and before.schedule != "constant":
        raise UsageError(
            f"a {before.schedule} schedule ends after the updates that it was made for; "
            "train a new run with more of them, or one with schedule=constant, which can be prolonged"
        )
    if after.updates < before.updates:
        raise UsageError(f"updates can grow from {before.updates}, not shrink")
    return later.with_absolute_paths()


_OF_ANSWERS = ("unions", "stored")
"""What a training keeps though it is about answers."""


def answered_by(config: Config, method: str, settings: Sequence[str] = ()) -> Config:
    """The configuration of a method that answers with what `config` has trained: itself, or one on the same ground.

    Only settings of how it answers can be changed: what was trained is as it is.
    """
    found = configured(_on_the_same_ground(config, method), None, settings)
    if found.training.stored != config.training.stored and not METHODS[method].looks_up:
        raise UsageError(f"{method} looks up no stored facts when it answers: leave out stored")
    if over := [name for name in _changes(config.training, found.training) if name not in _OF_ANSWERS]:
        raise UsageError(f"{', '.join(over)}: that is how it was trained, which is over; --set what changes answers")
    differing = _changes(config.model, found.model)
    if differing and _weights(found) != _weights(config):
        names = ", ".join(differing)
        raise UsageError(f"{names}: the weights were trained for what it was; --set what changes answers alone")
    return found


def _on_the_same_ground(config: Config, method: str) -> Config:
    if method == config.method:
        return config
    own = METHODS[_checked("method", method, Literal[*METHODS])]
    ground = _ground(config.model)
    learned = {field.name: getattr(config.model, field.name) for field in fields(ground)}
    if ground is not _ground(own.settings()):
        raise UsageError(f"{method} cannot answer with what {config.method} has learned; train one: --method {method}")
    training = replace(config.training, unions=own.unions[0])
    return replace(config, method=method, model=replace(own.settings(), **learned), training=training)


def _changes(one: Any, other: Any) -> list[str]:
    """The settings that two have both and that differ."""
    names = {field.name for field in fields(one)} & {field.name for field in fields(other)}
    return sorted(name for name in names if getattr(one, name) != getattr(other, name))


def _weights(config: Config) -> dict[str, tuple[int, ...]]:
    """The names and sizes of what would be trained on a tiny graph."""
    model = trainee_of(METHODS[config.method].specimen(config.model))
    return {name: tuple(weights.shape) for name, weights in model.state_dict().items()}


def _ground(settings: Any) -> Any:
    """The class of the settings of what is trained: methods on top of another one extend its settings."""
    known = {type(entry.settings()) for entry in METHODS.values()}
    return next(kind for kind in reversed(type(settings).__mro__) if kind in known)


def build(config: Config, graph: Graph) -> Model:
    """The untrained model for a graph."""
    return make(config.method, graph.at(config.training.known), config.model)


def changed(start: Config, changes: Mapping[str, Any], where: str = "") -> Config:
    """The configuration with other values of these settings, by name; `where` they come from is said of wrong ones."""
    parts = {"model": get_type_hints(type(start.model)), "training": get_type_hints(Training)}
    known = {name: part for part, hints in parts.items() for name in hints}
    found: dict[str, dict[str, Any]] = {"model": {}, "training": {}}
    for key, value in changes.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            advice = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(known))}"
            raise UsageError(f"{where}there is no setting {clipped(repr(key))}{advice}")
        found[known[key]][key] = _checked(f"{where}{key}", value, parts[known[key]][key])
    config = replace(
        start, model=replace(start.model, **found["model"]), training=replace(start.training, **found["training"])
    )
    _check_operators(config)
    return config


def _check_operators(config: Config) -> None:
    """Refuse to train or validate what the method cannot answer."""
    entry, training = METHODS[config.method], config.training
    if training.unions not in entry.unions:
        raise UsageError(
            f"{config.method} cannot answer unions as {training.unions}, but as {' or '.join(entry.unions)}"
        )
    asked = {f"leave {name} out of mix": SHAPES[name] for name, weight in training.mix.items() if weight}
    if training.union_share:
        asked["set union_share=0"] = SHAPES["2u"]
    if training.inverted_complements:
        asked["set inverted_complements=false"] = Complement(SHAPES["1p"])
    ground = _ground(config.model)
    trained = next(one for one in METHODS.values() if type(one.settings()) is ground)
    for advice, shape in asked.items():
        if missing := lacking(trained.operators, shape):
            raise UsageError(f"{config.method} has no {' and no '.join(missing)}: {advice}")


def _checked(key: str, value: Any, wanted: Any) -> Any:
    """A value of the wanted type, also from text; a UsageError where it cannot be one, or is out of range."""
    choices = get_args(wanted)
    if int in choices:  # or one of a few words
        words = [word for choice in choices for word in get_args(choice)]
        return value if value in words else _checked(key, value, int)
    if choices:
        if isinstance(choices[0], str):
            if value not in choices:
                raise UsageError(f"{key} is one of {', '.join(choices)}, not {clipped(repr(value))}")
            return value
        return _mix(key, value)
    if wanted is bool:
        truth = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in truth:
            raise UsageError(f"{key} is true or false, not {clipped(repr(value))}")
        return truth[str(value).lower()]
    if wanted is str:
        if not isinstance(value, str):
            raise UsageError(f"{key} is text, not {clipped(repr(value))}")
        return value
    try:
        number = int(str(value)) if wanted is int else float(str(value))
    except ValueError:
        what = "a whole number" if wanted is int else "a number"
        raise UsageError(f"{key} is {what}, not {clipped(repr(value))}") from None
    if number > (_LARGEST_INT if wanted is int else sys.float_info.max):
        raise UsageError(f"{key} is too large: {clipped(str(number))}")
    low, high = _RANGES.get(key.rpartition(" ")[2], (0, math.inf))
    if not low <= number <= high:
        bounds = f"at least {low}" if high == math.inf else f"between {low} and {high}"
        raise UsageError(f"{key} is {bounds}, not {number}")
    return number


def _mix(key: str, value: Any) -> dict[str, float]:
    """Weights of shapes, from a table or from text such as 1p:3,2i:1."""
    if isinstance(value, str):
        pairs = [pair.partition(":") for pair in value.split(",")]
        value = {name.strip(): weight for name, _, weight in pairs}
    if not isinstance(value, Mapping):
        raise UsageError(f"{key} takes weights such as 1p:3,2i:1, not {clipped(repr(value))}")
    weights = {}
    for name, weight in value.items():
        if name not in SHAPES:
            raise UsageError(f"{key} names {clipped(repr(name))}, which is no shape; there are {', '.join(SHAPES)}")
        try:
            weights[name] = float(str(weight))
        except ValueError:
            weights[name] = -1.0
        if not 0 <= weights[name] < math.inf:
            raise UsageError(f"{key} takes weights such as 1p:3,2i:1; that of {name} is {clipped(repr(weight))}")
    if not sum(weights.values()):
        raise UsageError(f"{key} has no shape with a weight above 0")
    return weights


_LARGEST_INT = 2**63 - 1

_RANGES: dict[str, tuple[float, float]] = {
    "dimension": (1, 100_000),
    "particles": (1, 1_000),
    "passes": (1, 100),
    "beam": (1, math.inf),
    "least": (0, 1),
    "walks": (0, 0.99),
    "threshold": (-math.inf, math.inf),
    **dict.fromkeys(("block", "hidden", "layers", "triples", "depth", "width"), (1, 100_000)),
    "dropout": (0, 0.99),
    "batch": (1, math.inf),
    "rate": (0, 1e30),  # beyond, float32 has no such step
    "decay": (0, 1_000),
    "edge_share": (0, 1),
    "cap": (1, math.inf),
    "updates": (1, math.inf),
    "clip": (1e-9, math.inf),
    "smoothing": (0, 0.99),
    "union_share": (0, 1),
    "leaked_share": (0, 1),
    "validate_every": (1, math.inf),
    "validation_queries": (1, math.inf),
}
"""What is not named here is at least 0."""
