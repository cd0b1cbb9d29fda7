"""From scores to probabilities: how likely is it that an entity which stored facts do not name is an answer?

A score compares with the others of its query only. What it is worth is learned from validation queries: of the
entities that the training facts neither name nor rule out, the best 100 of each query, and whether the larger graph
names them. With the scores s(v) of these open entities, their log Z = log Σ exp s(v), and n known answers,

    x = a (s(v) − log Z) + b (max s − log Z) + c log(1 + n) + d        a ≥ 0        p(v) = g(σ(x))

where σ is the logistic function and g a rising line through bins (isotonic regression), so that in one query a higher
score never has a lower probability. Each family of shapes has its own; so have answers that stored facts support and a
missing one may retract, which complements allow: for them p is how likely they stay.

A calibration belongs to weights: it lies beside them in the run folder and says which ones it was fitted to.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import isotonic_regression, minimize
from scipy.special import expit
from torch import Tensor

from query2particles.checkpoint import quoted
from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.exact import Batch, refuted_answers
from query2particles.engine.method import Method
from query2particles.engine.ranks import best_of, rows_at_once, scoring
from query2particles.engine.sets import Sets, union
from query2particles.errors import RunError, WorkloadError
from query2particles.files import new_file, write_json
from query2particles.graph.edges import Edges, Ints
from query2particles.query.algebra import Intersect, Project, Query, Union, branches, has_complement
from query2particles.query.rewrite import Unions
from query2particles.run import CALIBRATION, RELIABILITY, Run
from query2particles.workload.labels import Labels

__all__ = [
    "CALIBRATION",
    "RELIABILITY",
    "Calibration",
    "Contexts",
    "Curve",
    "Family",
    "Figures",
    "Judged",
    "calibrate",
    "expected_calibration_error",
    "family_of",
    "masked",
    "plot_reliability",
    "read_calibration",
    "save_calibration",
    "weights_digest",
]

Family: TypeAlias = Literal["one hop", "chain", "intersection", "union", "negation"]
Floats: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_FORMAT = 1
_TOP = 100
"""Of each query, as many of the best unknown entities are judged, and of the supported ones."""

_BIN = 20
"""Samples that one point of an isotonic curve stands for, at least."""

_LEAST_SPREAD = 0.1
"""Of a feature, in nats."""

_LEAST = 1e-6
"""No guess is less likely than this, nor likelier than 1 − this: only stored facts make certain."""

_FEWEST = 10
"""A family with fewer samples of either kind takes the curve of all."""

_BINS = 15
"""Of the expected calibration error and of the picture."""

_ALL, _SUPPORTED = "all", "supported"


def family_of(query: Query) -> Family:
    """What decides how a query's scores are read: its most demanding operator."""
    if has_complement(query):
        return "negation"
    if _has(query, Union):
        return "union"
    if _has(query, Intersect):
        return "intersection"
    return "chain" if _hops(query) > 1 else "one hop"


def _has(query: Query, operator: type[Query]) -> bool:
    return isinstance(query, operator) or any(_has(branch, operator) for branch in branches(query))


def _hops(query: Query) -> int:
    return isinstance(query, Project) + sum(map(_hops, branches(query)))


def masked(scores: Tensor, known: Sets) -> Tensor:
    """A copy of scores (n, entities), −∞ for what is known."""
    members = known.row_of_each(), known.values
    places = tuple(torch.as_tensor(ids, dtype=torch.int64, device=scores.device) for ids in members)
    if not known.complemented:
        return scores.index_put(places, scores.new_tensor(-torch.inf))
    return torch.full_like(scores, -torch.inf).index_put(places, scores[places])


@dataclass(frozen=True)
class Contexts:
    """What the scores of n queries are measured by."""

    log_total: Floats  # (n,) log Z over the open entities
    best: Floats  # (n,) max s, of the open ones
    known: Floats  # (n,) how many are known

    @staticmethod
    def of(scores: Tensor, unknown: Tensor, known: Sets) -> Contexts:
        """Of scores (n, entities), and of the same with −∞ for all that is not open; where nothing is, of all."""
        nothing = torch.isneginf(unknown.amax(1))
        if bool(nothing.any()):
            unknown = torch.where(nothing[:, None], scores, unknown)
        return Contexts(
            unknown.logsumexp(1).cpu().numpy().astype(np.float64),
            unknown.amax(1).cpu().numpy().astype(np.float64),
            known.sizes.astype(np.float64),
        )

    def __getitem__(self, rows: Any) -> Contexts:
        return Contexts(self.log_total[rows], self.best[rows], self.known[rows])

    def features(self, scores: Floats) -> Floats:
        """(…, 3) of scores (n, …), or of any shape where these are numbers of one query."""
        shape = (*np.shape(self.log_total), *([1] * (scores.ndim - np.ndim(self.log_total))))
        total, best, known = (np.reshape(part, shape) for part in (self.log_total, self.best, self.known))
        features = np.empty((*scores.shape, 3))
        features[..., 0], features[..., 1], features[..., 2] = scores - total, best - total, np.log1p(known)
        return features

    def softmax(self, scores: Floats) -> Floats:
        """What the scores claim as they are: exp(s − log Z), at most 1."""
        found: Floats = np.exp(np.minimum(self.features(scores)[..., 0], 0))
        return found


@dataclass(frozen=True)
class Curve:
    """p = g(σ(w · features + bias)), g the line through `knots`."""

    weights: tuple[float, ...]
    bias: float
    knots: tuple[tuple[float, float], ...]

    def __call__(self, features: Floats) -> Floats:
        weights, line = self._arrays
        probabilities: Floats = np.interp(expit(features @ weights + self.bias), *line)
        return probabilities

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats]:
        return np.array(self.weights), np.array(self.knots).T

    @staticmethod
    def fit(features: Floats, labels: Flags) -> Curve:
        """Logistic regression whose first weight is not negative, then isotonic regression on its bins."""
        # A feature that hardly varies here may do so elsewhere: it gets no steep weight.
        centre, spread = features.mean(0), np.maximum(features.std(0), _LEAST_SPREAD)
        inputs = np.c_[(features - centre) / spread, np.ones(len(features))]
        truth = labels.astype(np.float64)

        def loss(weights: Floats) -> tuple[float, Floats]:
            x = inputs @ weights
            penalty = 1e-4  # keeps weights finite where a line separates the labels
            value = np.mean(np.logaddexp(0, x) - truth * x) + penalty / 2 * (weights @ weights)
            return float(value), inputs.T @ (expit(x) - truth) / len(truth) + penalty * weights

        bounds = [(0, None)] + [(None, None)] * (inputs.shape[1] - 1)
        found = minimize(loss, np.zeros(inputs.shape[1]), jac=True, bounds=bounds, method="L-BFGS-B").x
        weights = found[:-1] / spread
        bias = float(found[-1] - weights @ centre)
        return Curve(tuple(weights.tolist()), bias, _isotonic(expit(features @ weights + bias), truth))

    def as_json(self) -> dict[str, Any]:
        return {"weights": list(self.weights), "bias": self.bias, "knots": [list(knot) for knot in self.knots]}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Curve:
        weights, knots = (
            tuple(map(float, document["weights"])),
            tuple((float(x), float(y)) for x, y in document["knots"]),
        )
        curve = Curve(weights, float(document["bias"]), knots)
        rises = all(one[0] <= two[0] and one[1] <= two[1] for one, two in pairwise(knots))
        numbers = [*weights, curve.bias, *(number for knot in knots for number in knot)]
        likely = all(0 <= y <= 1 for _, y in knots)
        fits = len(weights) == 3 and weights[0] >= 0 and knots and rises and likely
        if not fits or not all(map(math.isfinite, numbers)):
            raise ValueError("a curve has three weights, the first not negative, and knots that rise from 0 to 1")
        return curve


def _isotonic(rough: Floats, truth: Floats) -> tuple[tuple[float, float], ...]:
    """The knots of a rising curve from rough probabilities to the shares of the true in bins.

    A bin counts one sample more, of the rough probability itself: no handful of samples makes anything certain.
    """
    order = np.argsort(rough, kind="stable")
    starts = np.arange(0, max(len(order) - _BIN + 1, 1), _BIN)
    sizes = np.diff(np.append(starts, len(order)))
    middle = np.add.reduceat(rough[order], starts) / sizes
    share = (np.add.reduceat(truth[order], starts) + middle) / (sizes + 1)
    regression = isotonic_regression(share, weights=sizes)
    # One knot in the middle of each level stretch: between them the line rises, so that few entities tie.
    levels, first = regression.x[regression.blocks[:-1]], regression.blocks[:-1]
    centres = np.add.reduceat(middle * sizes, first) / np.add.reduceat(sizes, first)
    uncertain = np.clip(levels, _LEAST, 1 - _LEAST)
    return tuple((round(x, 9), round(y, 9)) for x, y in zip(centres.tolist(), uncertain.tolist(), strict=True))


@dataclass(frozen=True)
class Figures:
    """How a family was judged: queries and samples, and the expected calibration error before and after."""

    queries: int
    samples: int
    before: float
    after: float


@dataclass(frozen=True)
class Calibration:
    """The curve of each family, and what was measured when they were fitted, on queries that no fit had seen."""

    curves: Mapping[str, Curve]
    figures: Mapping[str, Figures] = field(default_factory=lambda: MappingProxyType({}))
    weights: str = ""
    """The SHA-256 of the file of weights that it was fitted to."""

    def predicted(self, family: Family, features: Floats) -> Floats:
        """How likely entities that are not known are answers."""
        return self.curves.get(family, self.curves[_ALL])(features)

    def supported(self, features: Floats) -> Floats:
        """How likely answers that stored facts support stay answers."""
        return self.curves.get(_SUPPORTED, self.curves[_ALL])(features)

    def as_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "weights": self.weights,
            "curves": {name: curve.as_json() for name, curve in self.curves.items()},
            "figures": {
                name: {
                    "queries": one.queries,
                    "samples": one.samples,
                    "ece_before": round(one.before, 6),
                    "ece_after": round(one.after, 6),
                }
                for name, one in self.figures.items()
            },
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Calibration:
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']}, where this version reads {_FORMAT}")
        curves = {str(name): Curve.from_json(curve) for name, curve in document["curves"].items()}
        if _ALL not in curves:
            raise ValueError("no curve of all families")
        figures = {
            str(name): Figures(
                int(one["queries"]), int(one["samples"]), float(one["ece_before"]), float(one["ece_after"])
            )
            for name, one in document["figures"].items()
        }
        return Calibration(curves, figures, str(document["weights"]))


@dataclass(frozen=True)
class _Samples:
    """Entities to learn from: their features, in which half of the queries they are, and whether they are answers."""

    features: Floats  # (m, 3)
    second_half: Flags  # (m,)
    labels: Flags  # (m,)
    queries: int

    @staticmethod
    def joined(several: Sequence[_Samples]) -> _Samples:
        if not several:
            return _Samples(np.zeros((0, 3)), np.zeros(0, dtype=bool), np.zeros(0, dtype=bool), 0)
        return _Samples(
            np.concatenate([one.features for one in several]),
            np.concatenate([one.second_half for one in several]),
            np.concatenate([one.labels for one in several]),
            sum(one.queries for one in several),
        )

    def half(self, second: bool) -> _Samples:
        own = self.second_half == second
        return _Samples(self.features[own], self.second_half[own], self.labels[own], self.queries)

    @property
    def tell(self) -> bool:
        """Whether there are enough of both kinds to learn from."""
        return min(int(self.labels.sum()), int((~self.labels).sum())) >= _FEWEST

    @property
    def softmax(self) -> Floats:
        found: Floats = np.exp(np.minimum(self.features[:, 0], 0))
        return found


@dataclass(frozen=True)
class Judged:
    """Samples as they are judged by curves that have not seen their queries."""

    before: Floats
    """The softmax as it is."""
    after: Floats
    labels: Flags

    @staticmethod
    def joined(several: Iterable[Judged]) -> Judged:
        columns = zip(*((one.before, one.after, one.labels) for one in several), strict=True)
        return Judged(*(np.concatenate(column) for column in columns))

    def figures(self, queries: int) -> Figures:
        errors = (expected_calibration_error(claimed, self.labels) for claimed in (self.before, self.after))
        return Figures(queries, len(self.labels), *errors)


def calibrate(
    method: Method[Any],
    edges: Edges,
    batch: Batch,
    labels: Mapping[Query, Labels],
    *,
    unions: Unions = "native",
    progress: Callable[[int], object] | None = None,
) -> tuple[Calibration, Mapping[str, Judged]]:
    """Fit to validation queries with easy answers on these edges, and judge the fit on queries that it has not seen.

    Shapes with operators that the method lacks are left out.

    For the judgement, which is returned beside it, each half of the queries is read by curves that were fitted to the
    other; the calibration itself was fitted to all.
    """
    families: dict[str, list[_Samples]] = {name: [] for name in (*get_args(Family), _SUPPORTED)}
    with scoring(method):
        for shape, ids in batch.items():
            disjuncts = Disjuncts.of(shape, unions)
            if disjuncts.lacking(method):
                continue
            refuted = refuted_answers(edges, {shape: ids})[shape]
            guessed, supported = _samples(method, disjuncts, ids, labels[shape], refuted, progress)
            families[family_of(shape)].append(guessed)
            if has_complement(shape):
                families[_SUPPORTED].append(supported)
    found = {name: _Samples.joined(several) for name, several in families.items() if several}
    found[_ALL] = _Samples.joined([samples for name, samples in found.items() if name != _SUPPORTED])
    if not all(found[_ALL].half(second).tell for second in (False, True)):
        raise WorkloadError(
            "the validation queries are too few to calibrate on: hardly any of their best entities is an answer, or "
            "hardly any is not; name a larger set (validation=DIR), or train for longer"
        )
    first, second = ({name: one.half(second) for name, one in found.items()} for second in (False, True))
    judged = {name: _judged(samples, name, _curves(first), _curves(second)) for name, samples in found.items()}
    judged[_ALL] = Judged.joined([one for name, one in judged.items() if name not in (_ALL, _SUPPORTED)])
    figures = {name: one.figures(found[name].queries) for name, one in judged.items()}
    return Calibration(_curves(found), figures), judged


def _curves(samples: Mapping[str, _Samples]) -> dict[str, Curve]:
    """One for each family that tells enough."""
    return {name: Curve.fit(one.features, one.labels) for name, one in samples.items() if one.tell}


def _judged(samples: _Samples, name: str, first: Mapping[str, Curve], second: Mapping[str, Curve]) -> Judged:
    """Each half as the curves of the other see it."""
    curves = first.get(name, first[_ALL]), second.get(name, second[_ALL])
    after = np.where(samples.second_half, *(curve(samples.features) for curve in curves))
    return Judged(samples.softmax, after, samples.labels)


def _samples(
    method: Method[Any],
    disjuncts: Disjuncts,
    ids: Ints,
    labels: Labels,
    refuted: Sets,
    progress: Callable[[int], object] | None,
) -> tuple[_Samples, _Samples]:
    """The best entities of the queries of one shape: those that are open, and those that facts support."""
    entities = labels.hard.entities
    together = max(1, rows_at_once(method, entities) // len(disjuncts.shapes))
    guessed, supported = [], []
    for start in range(0, len(ids), together):
        stop = min(start + together, len(ids))
        easy, hard, lost = (sets.rows(start, stop) for sets in (labels.easy, labels.hard, labels.lost))
        known = union([easy, lost])
        scores = disjuncts.scores(method, ids[start:stop], entities)
        unknown = masked(scores, union([known, refuted.rows(start, stop)]))
        contexts = Contexts.of(scores, unknown, known)
        guessed.append(_best(unknown, contexts, hard, start))
        supported.append(_best(masked(scores, known.complement()), contexts, easy, start))
        if progress is not None:
            progress(stop - start)
    return _Samples.joined(guessed), _Samples.joined(supported)


def _best(scores: Tensor, contexts: Contexts, answers: Sets, first: int) -> _Samples:
    """The best entities of what is not −∞; queries are numbered from `first` on."""
    entities, values = (part.cpu().numpy() for part in best_of([(0, scores)], _TOP))
    true = np.array([np.isin(entities[row], answers[row]) for row in range(len(values))])
    second_half = np.broadcast_to(np.arange(first, first + len(values))[:, None] % 2 == 1, values.shape)
    features = contexts.features(values.astype(np.float64))
    present = np.isfinite(values)
    return _Samples(features[present], second_half[present], true[present], len(values))


def expected_calibration_error(probabilities: Floats, labels: Flags, bins: int = _BINS) -> float:
    """Σ over bins of equal width: the share of samples there times |mean probability − share of the true|."""
    return sum(share * abs(claimed - true) for claimed, true, share in _reliability(probabilities, labels, bins))


def _reliability(probabilities: Floats, labels: Flags, bins: int = _BINS) -> Iterable[tuple[float, float, float]]:
    """For each bin that holds samples: their mean probability, the share of the true, and the share of all samples."""
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    counts = np.bincount(place, minlength=bins)
    claimed, true = (np.bincount(place, weights=values, minlength=bins) for values in (probabilities, labels))
    return [
        (float(claimed[one] / counts[one]), float(true[one] / counts[one]), float(counts[one] / len(labels)))
        for one in np.flatnonzero(counts)
    ]


def weights_digest(run: Run) -> str:
    """What tells the weights of a run from all others."""
    digests = []
    for path in run.weight_files:
        state = path.stat()
        digests.append(_digest_of(path, (state.st_ino, state.st_mtime_ns, state.st_size)))
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


@lru_cache(maxsize=64)
def _digest_of(path: Path, state: tuple[int, ...]) -> str:
    """Of a file as it is in this state: calibration and index both ask, and gigabytes take seconds to read."""
    del state
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_calibration(run: Run, calibration: Calibration) -> Calibration:
    """Write it into the run folder; unless it says to which weights it belongs, bound to those that are there."""
    bound = calibration if calibration.weights else replace(calibration, weights=weights_digest(run))
    write_json(run.folder / CALIBRATION, bound.as_json())
    return bound


def read_calibration(run: Run) -> Calibration | None:
    """The calibration of a run; None where there is none, or where the weights have changed since."""
    path = run.folder / CALIBRATION
    try:
        found = Calibration.from_json(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise RunError(
            f"{path} cannot be read ({quoted(error)}); remove it, or make it anew with q2p calibrate {run.folder}"
        ) from error
    return found if found.weights == weights_digest(run) else None


def plot_reliability(judged: Mapping[str, Judged], target: Path, *, title: str) -> None:
    """Of each family, how often what is given a probability is true: before and after, as a picture."""
    from matplotlib.figure import Figure

    names = [name for name in (_ALL, *get_args(Family), _SUPPORTED) if name in judged]
    columns = min(len(names), 4)
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(3.2 * columns, 3.2 * rows), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, name in zip(grid, names, strict=False):
        one = judged[name]
        axes.plot((0, 1), (0, 1), color="lightgray", linewidth=1)
        for what, probabilities, colour in (("softmax", one.before, "tab:gray"), ("calibrated", one.after, "tab:blue")):
            claimed, true, _ = zip(*_reliability(probabilities, one.labels), strict=True)
            error = expected_calibration_error(probabilities, one.labels)
            axes.plot(claimed, true, color=colour, marker="o", markersize=3, label=f"{what}, ECE {100 * error:.2f} %")
        axes.set(title=name, xlim=(0, 1), ylim=(0, 1), xlabel="probability", ylabel="share of answers")
        axes.legend(fontsize="small", frameon=False)
        axes.grid(alpha=0.3)
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    with new_file(target) as partial:
        figure.savefig(partial, format=target.suffix[1:], dpi=120)
