"""The JSON that comes in and goes out, as OpenAPI describes it.

What comes in is checked strictly: no unknown fields, no numbers as text. What goes out is made elsewhere and only
described here; tests hold the descriptions against the answers.
"""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from query2particles.answer import Guesses, Method, Status
from query2particles.query.syntax import Syntax
from query2particles.serve.limits import Limits

__all__ = [
    "AnswerRequest",
    "AnswerResponse",
    "BatchRequest",
    "BatchResponse",
    "EntitiesResponse",
    "ErrorResponse",
    "ExamplesResponse",
    "ExplainRequest",
    "ExplainResponse",
    "GraphResponse",
    "HealthResponse",
    "MapRequest",
    "MapResponse",
    "ParseRequest",
    "ParseResponse",
    "Quest",
    "RelationsResponse",
    "RunsResponse",
    "ScoreRequest",
    "ScoreResponse",
    "bounded",
]

Probability = Annotated[float, Field(ge=0, le=1)]
RunName = Annotated[str | None, Field(description="One of /v1/runs; without it, the default.", max_length=200)]


class Incoming(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @field_validator("k", mode="before", check_fields=False)
    @classmethod
    def _as_integer(cls, number: object) -> object:
        """In JSON, 10.0 is as much an integer as 10."""
        return int(number) if isinstance(number, float) and number.is_integer() else number


class Asked(Incoming):
    question: str = Field(description="A question in any of the syntaxes.", min_length=1)
    syntax: Syntax | None = Field(None, description="Without it, guessed from the text.")


class Quest(Asked):
    """A question, and what is wanted of its answers."""

    k: int = Field(10, ge=1, description="How many answers to name.")
    method: Method = Field(
        "both",
        description="exact: what follows from stored facts; neural: the model's ranking alone; best, fast: as both, by "
        "all parts of a joined run, or by its vectors alone.",
    )
    only: Literal["known", "predicted"] | None = Field(None, description="Leave out the others.")
    minimum_probability: Probability = Field(0.0, description="Leave out what is less likely.")
    guesses: Guesses = Field(
        "auto",
        description="auto: where the known answers look complete, guesses stand under `folded`; always: they stand "
        "among the answers there, too.",
    )


class AnswerRequest(Quest):
    run: RunName = None


class BatchRequest(Incoming):
    queries: list[Quest] = Field(min_length=1)
    run: RunName = None


class ExplainRequest(Asked):
    answer: str = Field(description="The name of the entity to explain.", min_length=1)
    threshold: Probability = Field(0.5, gt=0, description="A predicted fact below it does not count.")
    run: RunName = None


class FactAsked(Incoming):
    """A fact by the names of its parts."""

    head: str = Field(min_length=1)
    relation: str = Field(min_length=1)
    tail: str = Field(min_length=1)


class ScoreRequest(Incoming):
    facts: list[FactAsked] = Field(min_length=1)
    run: RunName = None


class MapRequest(Asked):
    k: int = Field(50, ge=1, description="How many answers to place.")
    run: RunName = None


class ParseRequest(Asked):
    run: RunName = None


Model = TypeVar("Model", bound=BaseModel)


def bounded(model: type[Model], limits: Limits) -> type[Model]:
    """`model` with the limits of this server, which its description tells as well."""
    quest = bounded(Quest, limits) if model is BatchRequest else Quest
    fact = bounded(FactAsked, limits) if model is ScoreRequest else FactAsked
    name = Annotated[str, Field(max_length=limits.question)]
    narrowed: dict[str, Any] = {
        **dict.fromkeys(("question", "answer", "head", "relation", "tail"), name),
        "k": Annotated[int, Field(le=limits.k)],
        "queries": Annotated[list[quest], Field(max_length=limits.batch)],  # type: ignore[valid-type]
        "facts": Annotated[list[fact], Field(max_length=limits.facts)],  # type: ignore[valid-type]
    }
    own = {name: (narrowed[name], copy(field)) for name, field in model.model_fields.items() if name in narrowed}
    if "k" in own:
        own["k"][1].default = min(own["k"][1].default, limits.k)
    made: type[Model] = create_model(model.__name__, __base__=model, __doc__=model.__doc__, **own)  # type: ignore[call-overload]
    return made


class Outgoing(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Named(Outgoing):
    name: str = Field(description="Unique.")
    label: str = Field(description="What people read.")


class NamedRelation(Named):
    """A relation by name and label."""


class AnswerRow(Named):
    rank: int = Field(ge=1)
    score: float | None = Field(None, description="Comparable within one question.")
    probability: Probability | None = Field(None, description="That it is an answer; null where not calibrated.")
    status: Status
    particle: int | None = Field(None, ge=0, description="Which particle found it.")


class SearchInfo(Outgoing):
    """How the best entities were found, where not all were scored at once."""

    by: Literal["index", "blocks", "cluster"]
    exact: bool = Field(description="Whether all entities were looked at.")
    recall: Probability | None = Field(None, description="The share of the best that an index finds, as measured.")
    recall_at: int | None = Field(None, ge=1, description="Of how many best.")
    shards: int | None = Field(None, ge=1, description="How many processes share the entities.")
    unasked: Probability | None = Field(None, description="The share of the entities that was lost with some of them.")


class AnswerBody(Outgoing):
    question: str
    query: str = Field(description="The question in the path syntax, in canonical form.")
    shape: str
    method: Method
    total: int = Field(ge=0, description="How many answers follow from stored facts.")
    expected_more: float | None = Field(
        description="How many answers beside those are expected, all probabilities together; null where not calibrated."
    )
    complete: bool | None = Field(
        description="Whether less than half an answer is expected beside the known ones; null where not calibrated."
    )
    answers: list[AnswerRow]
    folded: list[AnswerRow] = Field(description="Guesses that were left out since the known answers look complete.")
    warning: str | None = None
    search: SearchInfo | None = None


class AnswerResponse(AnswerBody):
    run: str


class ErrorBody(Outgoing):
    code: str
    message: str = Field(description="One line.")
    position: int | None = Field(None, ge=0, description="Where in the question, in characters.")
    length: int | None = Field(None, ge=1)
    suggestions: list[str] | None = Field(None, description="Names that exist.")


class ErrorResponse(Outgoing):
    """The one shape of every error."""

    error: ErrorBody
    request_id: str


class Failed(Outgoing):
    """In place of what could not be understood."""

    error: ErrorBody


class BatchResponse(Outgoing):
    run: str
    results: list[AnswerBody | Failed]


class Fact(Outgoing):
    head: Named
    relation: NamedRelation
    tail: Named
    status: Literal["stored", "predicted"]
    probability: Probability | None
    score: float | None


class EvidenceNode(Outgoing):
    """Why an entity is in the set of one part of the question; what is present depends on `op`."""

    op: Literal["anchor", "project", "intersect", "union", "complement"]
    entity: Named
    branches: list[EvidenceNode] | None = None
    fact: Fact | None = None
    holds: bool | None = None
    stored_path: bool | None = None
    counter_probability: Probability | None = None
    threshold: Probability | None = None


class ExplainResponse(Outgoing):
    question: str
    query: str
    answer: Named
    status: Status
    probability: Probability | None = Field(description="That it is an answer; null where not calibrated.")
    worth: Probability = Field(description="The product of the probabilities of the facts in the tree.")
    difference: str | None = Field(description="Why the two differ, in a sentence; null where they agree.")
    reasons: dict[str, float] = Field(
        description="Of a single predicted fact: how much each feature moves its log odds, the largest first."
    )
    threshold: Probability
    complete: bool = Field(description="Whether stored or likely facts complete the tree.")
    tree: EvidenceNode
    run: str


class ScoredFact(Outgoing):
    """A fact, as it was named."""

    head: str
    relation: str
    tail: str
    probability: Probability = Field(description="That it is true; 1 where it is stored.")
    stored: bool


class ScoreResponse(Outgoing):
    run: str
    results: list[ScoredFact | Failed] = Field(description="In the order of the facts.")


class MapRow(Named):
    x: float
    y: float
    particle: int | None
    status: Status
    probability: Probability | None
    rank: int


class Particle(Outgoing):
    particle: int
    x: float
    y: float
    answers: int


class MapResponse(Outgoing):
    question: str
    query: str
    shape: str
    answers: list[MapRow]
    particles: list[Particle]
    variance: list[float] = Field(description="What part of the variance either axis shows.")
    run: str


class SyntaxNode(Outgoing):
    """A part of a question; what is present depends on `op`."""

    op: Literal["anchor", "project", "intersect", "union", "complement"]
    entity: Named | None = None
    relation: NamedRelation | None = None
    inverse: bool | None = None
    branches: list[SyntaxNode] | None = None


class Canonical(Outgoing):
    path: str
    logic: str
    json_: str = Field(alias="json")


class ParseResponse(Outgoing):
    syntax: Syntax
    shape: str
    ast: SyntaxNode
    canonical: Canonical
    run: str


class EntitiesResponse(Outgoing):
    entities: list[Named]


class RelationRow(Named):
    facts: int


class RelationsResponse(Outgoing):
    relations: list[RelationRow]


class GraphResponse(Outgoing):
    name: str
    description: str
    entities: int
    relations: int
    facts: int
    attribution: str
    licence: str | None = None
    split: Literal["train", "valid", "test"]


class Example(Outgoing):
    words: str
    syntax: Syntax
    text: str


class ExamplesResponse(Outgoing):
    examples: list[Example]


class RunRow(Outgoing):
    name: str
    graph: str
    method: str | None = Field(description="null: a graph without a model, which answers from stored facts.")
    particles: int | None
    calibrated: bool
    version: str


class RunsResponse(Outgoing):
    runs: list[RunRow]
    default: str


class HealthResponse(Outgoing):
    status: Literal["ok"]
