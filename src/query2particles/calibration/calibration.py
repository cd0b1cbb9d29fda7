"""How likely is it that an entity which stored facts do not name is an answer of a question as it was asked?

What was learned about that from natural questions (`fitting`): for single facts, which are the answers of one-hop
questions, for each family of longer questions, for known answers that a missing fact may take back, and how many
answers are still missing. `Judge` applies it to the stored facts of one level.

A calibration belongs to weights: it lies beside them in the run folder and says which ones it was fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.calibration.additive import Additive
from query2particles.calibration.facts import FactFeatures
from query2particles.calibration.questions import KNOWN, OPEN, QuestionFeatures, family_of, last_relation
from query2particles.calibration.rates import Rates
from query2particles.calibration.reliability import Figures
from query2particles.engine.method import Method
from query2particles.engine.plausible import Plausible
from query2particles.engine.sets import Sets
from query2particles.errors import RunError
from query2particles.graph.edges import Edges, Ints
from query2particles.query.algebra import SHAPES, Query
from query2particles.ranking import Contexts

__all__ = ["ANY", "ONE_HOP", "POOL", "Calibration", "Judge", "Ranked", "name_of"]

Floats: TypeAlias = npt.NDArray[np.float64]

_FORMAT = 2
POOL = 50
"""So many of the best open entities of a question are judged; their probabilities tell how many answers are missing."""

ONE_HOP, ANY = "one hop", "any"
"""The names of what is fitted beside the families of longer questions: one hop, and all longer ones together."""

_SELDOM_LOST = 0.99
"""How likely known answers stay, where too few were lost to tell how often that happens."""


def name_of(shape: Query) -> str:
    """What a question is judged as: one hop, or its family."""
    return ONE_HOP if shape == SHAPES["1p"] else family_of(shape)


class Ranked(Protocol):
    """What `ranking` and `searched` say of the questions of one shape."""

    @property
    def nodes(self) -> Sequence[Sets]: ...

    @property
    def contexts(self) -> Contexts: ...


@dataclass(frozen=True)
class Calibration:
    """What was learned, and how it did on questions that no fit had seen."""

    facts: Additive
    questions: Mapping[str, Additive]
    """By family; and for any, where a family had too few samples."""
    lost: Additive | None
    """That a missing fact takes back a known answer of a question with a complement; None where too few were lost."""
    rates: Rates
    figures: Mapping[str, Figures] = field(default_factory=lambda: MappingProxyType({}))
    weights: str = ""
    """The SHA-256 of the weights that it was fitted to."""

    @staticmethod
    def by_scores(model: Method[Any], relations: int) -> Calibration:
        """One that looks at scores alone and was fitted to nothing, for models that have learned nothing."""

        def additive(names: Sequence[str]) -> Additive:
            weights = tuple(0.5 if number == 0 else 0.0 for number in range(len(names)))
            return Additive(tuple(names), weights, 0.5, ((0.0, 0.02), (1.0, 0.9)), {}, (0.0,) * len(names))

        facts, longer = additive(FactFeatures.names_for(model)), additive(OPEN)
        return Calibration(facts, {ANY: longer}, None, Rates.constant(relations))

    def of_family(self, family: str) -> Additive:
        return self.questions.get(family) or self.questions[ANY]

    def as_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "weights": self.weights,
            "facts": self.facts.as_json(),
            "questions": {name: one.as_json() for name, one in self.questions.items()},
            "lost": None if self.lost is None else self.lost.as_json(),
            "rates": self.rates.as_json(),
            "figures": {name: one.as_json() for name, one in self.figures.items()},
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Calibration:
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']}, where this version reads {_FORMAT}")
        questions = {str(name): Additive.from_json(one) for name, one in document["questions"].items()}
        lost = None if document["lost"] is None else Additive.from_json(document["lost"])
        if ANY not in questions:
            raise ValueError("nothing that was fitted for any question")
        if any(one.names != OPEN for one in questions.values()) or (lost is not None and lost.names != KNOWN):
            raise ValueError("features of longer questions that this version does not have")
        return Calibration(
            Additive.from_json(document["facts"]),
            questions,
            lost,
            Rates.from_json(document["rates"]),
            {str(name): Figures.from_json(one) for name, one in document["figures"].items()},
            str(document["weights"]),
        )


@dataclass(frozen=True, eq=False)
class Judge:
    """Probabilities from a model, over the edges of one level."""

    calibration: Calibration
    model: Method[Any]
    edges: Edges
    plausible: Plausible

    def __post_init__(self) -> None:
        if self.calibration.facts.names != FactFeatures.names_for(self.model):
            raise RunError(
                "the calibration was fitted to other features of facts than this model has: q2p calibrate RUN makes it "
                "anew"
            )

    @cached_property
    def features(self) -> FactFeatures:
        return FactFeatures(self.model, self.edges, self.plausible.kinds, self.calibration.rates)

    def facts(self, heads: Ints, relations: Ints, tails: Ints) -> Floats:
        """How likely facts with directed relations (m,) are true: 1 where they are stored; call it in `scoring`."""
        found = self.guessed_facts(heads, relations, tails)
        found[self.stored(heads, relations, tails)] = 1.0
        return found

    def guessed_facts(self, heads: Ints, relations: Ints, tails: Ints) -> Floats:
        """The same for facts that are not stored."""
        if not len(heads):
            return np.zeros(0)
        found = self.calibration.facts(self.features(heads, relations, tails), relations // 2)
        found[(heads == tails) & ~self.edges.loops[relations]] = 0.0
        return found

    def stored(self, heads: Ints, relations: Ints, tails: Ints) -> npt.NDArray[np.bool_]:
        """Whether facts (m,) are stored."""
        columns = (column.tolist() for column in (heads, relations, tails))
        return np.array([self.edges.has(*fact) for fact in zip(*columns, strict=True)], dtype=bool)

    def reasons(self, head: int, relation: int, tail: int) -> dict[str, float]:
        """How much each feature of a fact that is not stored moves its log odds, the largest first."""
        fact = (np.array([one]) for one in (head, relation, tail))
        found = self.calibration.facts.reasons(self.features(*fact)[0], relation // 2)
        return dict(sorted(found.items(), key=lambda one: -abs(one[1])))

    def open(self, shape: Query, ids: Ints, ranked: Ranked, scores: Floats, entities: Ints) -> Floats:
        """(n, k): how likely open entities answer n questions of one shape; entities below 0 are none."""
        present = entities >= 0
        if shape == SHAPES["1p"]:
            found = np.zeros(entities.shape)
            pairs = np.repeat(ids, entities.shape[1], axis=0)[present.ravel()]
            found[present] = self.guessed_facts(pairs[:, 0], pairs[:, 1], entities[present])
            return found
        features = self._questions(shape, ids, ranked).of_open(
            np.where(present, scores, 0.0), np.where(present, entities, 0)
        )
        last = last_relation(shape, ids)
        relations = np.where(last < 0, self.edges.relations, last)[:, None] // 2  # without one, as of no samples
        return np.where(present, self.calibration.of_family(family_of(shape))(features, relations), 0.0)

    def kept(self, shape: Query, ids: Ints, ranked: Ranked, scores: Floats) -> Floats:
        """(n, k): how likely known answers of questions with a complement stay answers."""
        if self.calibration.lost is None:
            return np.full(scores.shape, _SELDOM_LOST)
        return 1 - self.calibration.lost(self._questions(shape, ids, ranked).of_known(scores))

    def _questions(self, shape: Query, ids: Ints, ranked: Ranked) -> QuestionFeatures:
        return QuestionFeatures(shape, ids, ranked.nodes, ranked.contexts, self.features, self.guessed_facts)
