"""`Graph`: a vocabulary of entities, one of relations, and the edges of three nested levels.

    train ⊂ valid ⊂ test          valid holds the training facts and the validation facts; test holds all

so that `graph.at("valid")` is everything known when test answers are asked for. A graph without splits has the same
edges on every level. Graphs are immutable; `save` writes a folder that `Graph.open` memory-maps in milliseconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from query2particles.errors import GraphError, clipped
from query2particles.files import new_folder
from query2particles.graph.arrays import unreadable
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.vocabulary import Vocabulary

if TYPE_CHECKING:
    from query2particles.query.expression import Expression

__all__ = [
    "HELD_OUT",
    "SPLITS",
    "Graph",
    "Split",
    "Splits",
    "checked_about",
    "is_graph_file",
    "is_graph_folder",
    "smaller",
]

Split: TypeAlias = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

Splits: TypeAlias = tuple[float, float] | None
"""The shares of facts that are drawn for validation and for test; None draws none."""

HELD_OUT: Splits = (0.1, 0.1)
"""What is drawn unless the caller says otherwise: without validation facts nothing tells how sure a guess may be."""

_FORMAT = 1
_MANIFEST = "graph.json"
_STORED_LEVELS = (["train"], ["train", "valid"], ["train", "test"], ["train", "valid", "test"])
"""A level that adds nothing to the one below is not stored."""


def smaller(split: Split) -> Split:
    """The level on which the answers of this split are easy: train for valid, valid for test."""
    if split == "train":
        raise GraphError("training queries have no smaller graph: only valid and test queries have hard answers")
    return SPLITS[SPLITS.index(split) - 1]


@dataclass(frozen=True, eq=False)
class Graph:
    """Facts, as ids, with the names outside.

    `relations` names the stored relations 0 … R − 1; directed relation 2k is relation k, 2k + 1 its inverse.
    `about` is free metadata: name, attribution, prefixes, sources, what an import dropped.
    """

    entities: Vocabulary
    relations: Vocabulary
    levels: Mapping[Split, Edges]
    about: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    """Where it can be opened again: a folder, or the name of the embedded graph; None: it is in memory alone."""

    @staticmethod
    def from_triples(
        triples: Iterable[Sequence[Any]],
        *,
        splits: Splits = HELD_OUT,
        seed: int = 0,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Graph:
        """The graph of (head, relation, tail), by name.

        A tenth of the facts each is held out for validation and for test, unless `splits` says otherwise: they count as
        facts when questions are asked, but no model is trained on them, so that they tell how good it is.

            >>> Graph.from_triples([("Ann", "knows", "Bob"), ("Bob", "knows", "Cem")], splits=None)
            Graph('triples', 3 entities, 1 relation, 2 facts)
        """
        from query2particles.graph.frames import graph_of_triples

        return graph_of_triples(triples, splits=splits, seed=seed, labels=labels, name=name)

    @staticmethod
    def from_pandas(
        frame: Any,
        head: str = "head",
        relation: str = "relation",
        tail: str = "tail",
        *,
        splits: Splits = HELD_OUT,
        seed: int = 0,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Graph:
        """The graph of a pandas data frame with a fact in each row; `head`, `relation` and `tail` name its columns."""
        from query2particles.graph.frames import graph_of_frame

        columns = (head, relation, tail)
        return graph_of_frame(frame, columns, splits=splits, seed=seed, labels=labels, name=name)

    @staticmethod
    def from_polars(
        frame: Any,
        head: str = "head",
        relation: str = "relation",
        tail: str = "tail",
        *,
        splits: Splits = HELD_OUT,
        seed: int = 0,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Graph:
        """The same of a polars data frame."""
        return Graph.from_pandas(frame, head, relation, tail, splits=splits, seed=seed, labels=labels, name=name)

    @staticmethod
    def from_networkx(
        graph: Any,
        relation: str = "relation",
        *,
        splits: Splits = HELD_OUT,
        seed: int = 0,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Graph:
        """The graph of a networkx graph; `relation` is the attribute of edges that names their relation."""
        from query2particles.graph.frames import graph_of_networkx

        return graph_of_networkx(graph, relation, splits=splits, seed=seed, labels=labels, name=name)

    @staticmethod
    def from_rdf(
        graph: Any,
        *,
        splits: Splits = HELD_OUT,
        seed: int = 0,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Graph:
        """The graph of an RDFLib graph; its literals are dropped, but for the labels of its resources."""
        from query2particles.graph.frames import graph_of_rdf

        return graph_of_rdf(graph, splits=splits, seed=seed, labels=labels, name=name)

    def to_pandas(self, split: Split = "test") -> Any:
        """A data frame of the facts of a level, by name: head, relation, tail; `from_pandas` reads it."""
        from query2particles.graph.frames import data_frame

        edges = self.at(split)
        heads, relations = edges.heads_and_relations()
        forward = relations % 2 == 0
        columns = ((self.entities, heads), (self.relations, relations // 2), (self.entities, edges.tails))
        names = ([names.name(one) for one in ids[forward].tolist()] for names, ids in columns)
        return data_frame(("head", "relation", "tail"), list(zip(*names, strict=True)))

    def __repr__(self) -> str:
        facts = sum(self.facts().values())
        counts = ((len(self.entities), "entity", "entities"), (len(self.relations), "relation", "relations"))
        words = [f"{count:,} {one if count == 1 else many}" for count, one, many in (*counts, (facts, "fact", "facts"))]
        return f"Graph({self.name!r}, {', '.join(words)})"

    @staticmethod
    def of(
        entities: Vocabulary,
        relations: Vocabulary,
        facts: Mapping[Split, tuple[Ints, Ints, Ints]],
        about: Mapping[str, Any] | None = None,
    ) -> Graph:
        """The graph of these facts: arrays of heads, stored relations and tails for each split's own facts."""
        levels: dict[Split, Edges] = {}
        so_far: list[tuple[Ints, Ints, Ints]] = []
        for split in SPLITS:
            own = facts.get(split)
            if own is not None and len(own[0]):
                so_far.append(own)
                heads, between, tails = map(np.concatenate, zip(*so_far, strict=True))
                levels[split] = Edges.of(
                    heads, between, tails, entity_count=len(entities), relation_count=len(relations)
                )
            elif levels:
                levels[split] = levels[SPLITS[SPLITS.index(split) - 1]]
            else:
                raise GraphError("the training split has no facts")
        return Graph(entities, relations, levels, about or {})

    def __getitem__(self, entity: str) -> Expression:
        """An entity by name or label, to build a question from: graph["French"].inverse("speaks")."""
        from query2particles.query.expression import Expression

        return Expression.of(self, entity)

    def at(self, split: Split) -> Edges:
        """The edges of a nested level."""
        return self.levels[split]

    def without(self, split: Split) -> Edges:
        """All edges but those of one split's own facts. Of a graph too large for copies, those of the splits below."""
        if split == "test" or self.at("test") is self.at(split):
            return self.at(smaller(split))
        above, own, below = self.at("test"), self.at(split), self.at(smaller(split))
        if above.large:
            return below
        added = np.setdiff1d(own.packed(), below.packed(), assume_unique=True)
        kept = np.isin(above.packed(), added, assume_unique=True, invert=True)
        heads, relations = above.heads_and_relations()
        forward = kept & (relations % 2 == 0)
        return Edges.of(
            heads[forward],
            relations[forward] // 2,
            above.tails[forward],
            entity_count=above.entities,
            relation_count=above.relations // 2,
        )

    @property
    def name(self) -> str:
        return str(self.about.get("name", "graph"))

    @property
    def prefixes(self) -> Mapping[str, str]:
        """Prefixes of IRIs, remembered from RDF sources for use in queries."""
        prefixes: Mapping[str, str] = self.about.get("prefixes", {})
        return prefixes

    @cached_property
    def fingerprint(self) -> str:
        """Equal for two graphs just where their ids mean the same: a SHA-256 of both vocabularies."""
        return hashlib.sha256(f"{self.entities.fingerprint} {self.relations.fingerprint}".encode()).hexdigest()

    def relation_name(self, directed: int) -> str:
        """The name of a directed relation, `^` before it where it is an inverse."""
        return "^" * (directed % 2) + self.relations.name(directed // 2)

    def relation_label(self, directed: int) -> str:
        """Likewise for people."""
        return "^" * (directed % 2) + self.relations.label(directed // 2)

    def facts(self) -> dict[Split, int]:
        """The number of facts of each split alone."""
        counts = [self.at(split).facts for split in SPLITS]
        return {split: count - below for split, count, below in zip(SPLITS, counts, [0, *counts], strict=False)}

    def save(self, folder: str | Path) -> None:
        """Write the graph as a folder; an older one there is replaced in one step."""
        folder = Path(folder)
        with new_folder(folder, replaces=is_graph_file) as partial:
            self.entities.save(partial, "entities")
            self.relations.save(partial, "relations")
            for split in self._stored():
                self.at(split).save(partial, split)
            self.write_manifest(partial)

    def write_manifest(self, folder: Path) -> None:
        """Make a folder that holds the arrays of this graph its graph folder."""
        manifest = {
            "format": _FORMAT,
            "entities": len(self.entities),
            "relations": len(self.relations),
            "facts": self.facts(),
            "levels": self._stored(),
            "fingerprint": self.fingerprint,
            "about": dict(self.about),
        }
        (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")

    def _stored(self) -> list[Split]:
        """The levels that add something to the one below."""
        return [split for split in SPLITS if split == "train" or self.at(split) is not self.at(smaller(split))]

    @staticmethod
    def open(folder: str | Path) -> Graph:
        """Memory-map a folder that `save` wrote. A damaged one is an error, here or when its edges are first used."""
        folder = Path(folder)
        try:
            manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
            if not isinstance(manifest, dict):
                raise unreadable(folder, f"{_MANIFEST} holds no object")
            if manifest["format"] != _FORMAT:
                raise GraphError(
                    f"{folder} is in graph format {manifest['format']}, this version reads {_FORMAT}; import it again"
                )
            counts, stored, facts = (manifest["entities"], manifest["relations"]), manifest["levels"], manifest["facts"]
            about = checked_about(manifest["about"])
        except (OSError, ValueError, RecursionError) as error:
            raise unreadable(folder, f"{_MANIFEST}: {error}") from error
        except KeyError as error:
            raise unreadable(folder, f"{_MANIFEST} lacks {error}") from error
        vocabularies = Vocabulary.open(folder, "entities"), Vocabulary.open(folder, "relations")
        if not all(type(count) is int for count in counts) or counts != tuple(map(len, vocabularies)):
            raise unreadable(folder, f"{_MANIFEST} counts other entities and relations than there are")
        if stored not in _STORED_LEVELS:
            raise unreadable(folder, f"{_MANIFEST} names other levels than there can be")
        levels: dict[Split, Edges] = {}
        for split in SPLITS:
            levels[split] = (
                Edges.open(folder, split, entity_count=counts[0], relation_count=counts[1])
                if split in stored
                else levels[smaller(split)]
            )
        graph = Graph(*vocabularies, levels, about, str(folder.resolve()))
        if graph.facts() != facts:
            raise unreadable(folder, f"{_MANIFEST} counts other facts than there are")
        return graph


def checked_about(about: object) -> dict[str, Any]:
    """The metadata of a graph as they were read from a file; a ValueError where they are nothing of the kind."""
    if not isinstance(about, dict):
        raise ValueError(f"expected an object, found {clipped(repr(about))}")  # noqa: TRY004
    prefixes = about.get("prefixes", {})
    if not (isinstance(prefixes, dict) and all(isinstance(iri, str) for iri in prefixes.values())):
        raise ValueError(f"expected an object of strings as prefixes, found {clipped(repr(prefixes))}")
    json.dumps(about, ensure_ascii=False).encode()  # half a surrogate pair could be read, but never written again
    return about


def is_graph_file(name: str) -> bool:
    """Whether a file of that name in a graph folder is one of ours."""
    return name == _MANIFEST or name.endswith(".npy")


def is_graph_folder(path: Path) -> bool:
    return (path / _MANIFEST).is_file()
