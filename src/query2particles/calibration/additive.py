"""Probabilities as sums that can be read: named features, each with a weight, and one effect for each relation.

    x = slope(relation) (w · features + bias) + effect(relation)          p = g(σ(x))

σ is the logistic function and g a rising line through bins (isotonic regression). Weights of scores are not negative,
so that of two entities that differ in their scores alone, the one with the higher score never has the lower
probability. Effects are drawn to 0 and slopes to 1: a relation with few facts stays close to what holds for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression, minimize
from scipy.special import expit

from query2particles.graph.edges import Ints

__all__ = ["Additive", "Samples", "line_through"]

Floats: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_LEAST = 1e-6
"""No guess is less likely than this, nor likelier than 1 − this: only stored facts make certain."""

_LEAST_SPREAD = 0.1
"""Of a feature: one that hardly varies in the samples gets no steep weight."""

_OF_EFFECTS, _OF_SLOPES = 1.0, 20.0
"""The penalties of the squares of effects, and of how far slopes are from 1."""

_LEAST_SLOPE = 0.1

_BINS = 30
"""Points of an isotonic curve, at most: each stands for as many true samples."""

_PRIOR = 20.0

_DOUBTED = (0.3, 0.5)
"""Shares from the first one on are lowered for doubt, from the second one on by all of it."""


@dataclass(frozen=True)
class Samples:
    """Entities to learn from: features, relation, how many each stands for, its question, and whether it is true."""

    features: Floats  # (m, features)
    relation: Ints  # (m,)
    weight: Floats  # (m,)
    question: Ints  # (m,)
    true: Flags  # (m,)

    @staticmethod
    def joined(several: Sequence[Samples]) -> Samples:
        names = ("features", "relation", "weight", "question", "true")
        return Samples(*(np.concatenate([getattr(one, name) for one in several]) for name in names))

    def take(self, own: Any) -> Samples:
        return Samples(self.features[own], self.relation[own], self.weight[own], self.question[own], self.true[own])


@dataclass(frozen=True)
class Additive:
    """p of features (…, number of names) and relations (…)."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    bias: float
    knots: tuple[tuple[float, float], ...]
    relations: Mapping[int, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))
    """The slope and the effect of each relation that samples told something about."""
    centre: tuple[float, ...] = ()
    """The mean of each feature over what it was fitted to: reasons are told in relation to it."""

    def __call__(self, features: Floats, relations: Ints | int = 0) -> Floats:
        return self.probabilities(self.log_odds(features, relations))

    def probabilities(self, log_odds: Floats) -> Floats:
        """P of x."""
        found: Floats = np.interp(expit(log_odds), *self._line)
        return found

    def log_odds(self, features: Floats, relations: Ints | int = 0) -> Floats:
        """X."""
        slope, effect = self._of_relations(relations)
        found: Floats = slope * (features @ self._weights + self.bias) + effect
        return found

    def reasons(self, features: Floats, relation: int = 0) -> dict[str, float]:
        """How much each feature of one entity (features,) moves its log odds away from those of a usual candidate."""
        slope, effect = self._of_relations(relation)
        moved = slope * self._weights * (features - np.array(self.centre))
        found = dict(zip(self.names, moved.tolist(), strict=True))
        if not self.relations:
            return found
        usual = float(np.array(self.centre) @ self._weights + self.bias)
        return {**found, "relation": float(effect + (slope - 1) * usual)}

    @cached_property
    def _weights(self) -> Floats:
        return np.array(self.weights)

    @cached_property
    def _line(self) -> Floats:
        return np.array(self.knots).T

    @cached_property
    def _table(self) -> Floats:
        """(relations + 1, 2); the last row is that of relations without samples."""
        table = np.tile([1.0, 0.0], (max(self.relations, default=-1) + 2, 1))
        for relation, own in self.relations.items():
            table[relation] = own
        return table

    def _of_relations(self, relations: Ints | int) -> Floats:
        """The slopes and the effects (2, …)."""
        known: Floats = self._table[np.minimum(relations, len(self._table) - 1)]
        return np.moveaxis(known, -1, 0)

    @staticmethod
    def fit(
        names: Sequence[str],
        samples: Samples,
        *,
        rising: Sequence[bool],
        by_relation: bool,
        usual: Sequence[float] | None = None,
        penalty: float = 1.0,
    ) -> Additive:
        """The likeliest weights; `rising` says which of them are not negative.

        The squares of their differences to `usual` weights (none: 0) are held down by a penalty.
        """
        features, truth, counts = samples.features, samples.true.astype(np.float64), samples.weight
        centre, spread = features.mean(0), np.maximum(features.std(0), _LEAST_SPREAD)
        inputs = (features - centre) / spread
        relations, group = np.unique(samples.relation, return_inverse=True)
        if not by_relation:
            relations, group = relations[:0], np.zeros(len(group), dtype=np.int64)
        width, groups = inputs.shape[1], len(relations)
        drawn_to = np.zeros(width) if usual is None else np.array(usual) * spread

        def loss(parameters: Floats) -> tuple[float, Floats]:
            weights, bias, effects = parameters[:width], parameters[width], parameters[width + 1 :]
            x = inputs @ weights + bias + (effects[group] if groups else 0.0)
            value = np.sum(counts * (np.logaddexp(0, x) - truth * x))
            apart = weights - drawn_to
            value += penalty / 2 * apart @ apart + _OF_EFFECTS / 2 * effects @ effects
            off = counts * (expit(x) - truth)
            slope = [inputs.T @ off + penalty * apart, np.array([off.sum()])]
            if groups:
                slope.append(np.bincount(group, weights=off, minlength=groups) + _OF_EFFECTS * effects)
            return float(value), np.concatenate(slope)

        bounds = [(0, None) if rises else (None, None) for rises in rising] + [(None, None)] * (1 + groups)
        start = np.zeros(width + 1 + groups)
        share = np.clip(np.sum(counts * truth) / counts.sum(), 1e-9, 0.5)
        start[width] = math.log(share / (1 - share))
        found = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 500}).x
        weights = found[:width] / spread
        bias = float(found[width] - weights @ centre)
        x = features @ weights + bias
        own = {
            int(relation): _scaled(x[group == number], truth[group == number], counts[group == number])
            for number, relation in enumerate(relations)
        }
        rough = Additive(tuple(names), tuple(weights.tolist()), bias, ((0.0, 0.0), (1.0, 1.0)), own)
        knots = line_through(expit(rough.log_odds(features, samples.relation)), samples)
        return replace(rough, knots=knots, centre=tuple(centre.tolist()))

    def as_json(self) -> dict[str, Any]:
        return {
            "features": list(self.names),
            "weights": list(self.weights),
            "centre": list(self.centre),
            "bias": self.bias,
            "knots": [list(knot) for knot in self.knots],
            "relations": {str(relation): list(own) for relation, own in self.relations.items()},
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Additive:
        names, weights = tuple(map(str, document["features"])), tuple(map(float, document["weights"]))
        knots = tuple((float(x), float(y)) for x, y in document["knots"])
        centre = tuple(map(float, document["centre"]))
        own = {
            int(relation): (float(slope), float(effect)) for relation, (slope, effect) in document["relations"].items()
        }
        bias = float(document["bias"])
        rises = all(one[0] <= two[0] and one[1] <= two[1] for one, two in pairwise(knots))
        likely = all(0 <= y <= 1 for _, y in knots)
        numbers = [*weights, *centre, bias, *(number for pair in (*own.values(), *knots) for number in pair)]
        fits = knots and rises and likely and len(weights) == len(names) == len(centre)
        if not fits or min(own, default=0) < 0 or not all(map(math.isfinite, numbers)):
            raise ValueError(
                "a weight for each feature, finite numbers, and knots that rise between 0 and 1 were expected"
            )
        return Additive(names, weights, bias, knots, own, centre)


def _scaled(x: Floats, truth: Floats, counts: Floats) -> tuple[float, float]:
    """The slope and the effect that make the samples of one relation likeliest, given their log odds by all."""

    def loss(parameters: Floats) -> tuple[float, Floats]:
        slope, effect = parameters
        own = slope * x + effect
        off = counts * (expit(own) - truth)
        value = np.sum(counts * (np.logaddexp(0, own) - truth * own))
        value += _OF_SLOPES / 2 * (slope - 1) ** 2 + _OF_EFFECTS / 2 * effect**2
        return float(value), np.array([off @ x + _OF_SLOPES * (slope - 1), off.sum() + _OF_EFFECTS * effect])

    bounds = [(_LEAST_SLOPE, None), (None, None)]
    slope, effect = minimize(loss, np.array([1.0, 0.0]), jac=True, bounds=bounds, method="L-BFGS-B").x
    return float(slope), float(effect)


def line_through(rough: Floats, samples: Samples, doubt: float = 0.0) -> tuple[tuple[float, float], ...]:
    """The knots of a rising line from rough probabilities of samples to the shares of the true in bins of them.

    Bins hold as many true samples each, and count `_PRIOR` more of the rough probability itself: no handful of samples
    makes anything certain. Shares of ½ and more are lowered by `doubt` standard errors, each that of as many samples as
    there are questions in the bin: what is called likely should be right at least as often as that.
    """
    order = np.argsort(rough, kind="stable")
    truth, counts, question = samples.true[order].astype(np.float64), samples.weight[order], samples.question[order]
    each = max(20.0, truth.sum() / _BINS)
    place = np.minimum((np.cumsum(truth) - truth) // each, max(truth.sum() // each - 1, 0))
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    sizes = np.add.reduceat(counts, starts)
    middle = np.add.reduceat(counts * rough[order], starts) / sizes
    share = (np.add.reduceat(counts * truth, starts) + _PRIOR * middle) / (sizes + _PRIOR)
    questions = np.array([len(np.unique(some)) for some in np.split(question, starts[1:])])
    doubted = np.clip((share - _DOUBTED[0]) / (_DOUBTED[1] - _DOUBTED[0]), 0, 1)
    share -= doubt * doubted * np.sqrt(share * (1 - share) / questions)
    regression = isotonic_regression(share, weights=sizes)
    # One knot in the middle of each level stretch: between them the line rises, so that few entities tie.
    first = regression.blocks[:-1]
    levels = np.clip(regression.x[first], _LEAST, 1 - _LEAST)
    centres = np.add.reduceat(middle * sizes, first) / np.add.reduceat(sizes, first)
    ends = ([(0.0, _LEAST)] if centres[0] > 0 else [], [(1.0, 1 - _LEAST)] if centres[-1] < 1 else [])
    knots = [*ends[0], *zip(centres.tolist(), levels.tolist(), strict=True), *ends[1]]
    return tuple((round(x, 9), round(y, 9)) for x, y in knots)
