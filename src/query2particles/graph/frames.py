"""Facts that are in memory already, as graphs: triples, data frames, networkx and RDFLib graphs; and results as frames.

They take the same way as files (`load`): columns of names become ids, splits are drawn, labels are attached. None of
the libraries is imported unless one of its objects is handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from query2particles.errors import SourceError, UsageError
from query2particles.graph.facts import FactTable
from query2particles.graph.graph import HELD_OUT, Graph, Splits
from query2particles.graph.load import ImportOptions, assembled
from query2particles.graph.tables import FACT

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["data_frame", "graph_of_columns", "graph_of_frame", "graph_of_networkx", "graph_of_rdf", "graph_of_triples"]


class _Columns(NamedTuple):
    """A source (`readers.Reader`) whose facts are in memory; its lines are the rows, counted from 1."""

    path: Path
    columns: tuple[Any, Any, Any]

    def batches(self) -> Iterator[tuple[pa.DictionaryArray, ...]]:
        yield tuple(self._encoded(role, column) for role, column in zip(FACT, self.columns, strict=True))

    def line_of(self, row: int) -> int:
        return row + 1

    def _encoded(self, role: str, column: Any) -> pa.DictionaryArray:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            # polars hands its columns over as Arrow's; pandas marks missing values in its own ways
            names = column.to_arrow() if hasattr(column, "to_arrow") else pa.array(column, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise SourceError(self.path, None, f"the column {role} mixes kinds of values: {error}") from error
        if isinstance(names, pa.ChunkedArray):
            names = names.combine_chunks()
        if pa.types.is_dictionary(names.type):  # categories
            names = names.cast(names.type.value_type)
        if names.null_count:
            missing = pc.index(names.is_null(), value=True).as_py()
            raise SourceError(self.path, missing + 1, f"the {role} is missing")
        if len(names) and not (_is_text(names.type) or pa.types.is_integer(names.type)):
            reason = f"the column {role} holds values of type {names.type}; names are strings or whole numbers"
            raise SourceError(self.path, None, reason)
        return names.cast(pa.string()).dictionary_encode()


def data_frame(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    """A pandas data frame; pandas is needed for nothing else."""
    try:
        import pandas as pd
    except ImportError as error:
        raise UsageError("data frames need pandas, which is not installed: pip install pandas") from error
    return pd.DataFrame(list(map(tuple, rows)), columns=list(columns))


def graph_of_columns(
    heads: Any,
    relations: Any,
    tails: Any,
    *,
    source: str,
    splits: Splits = HELD_OUT,
    seed: int = 0,
    labels: Mapping[str, str] | None = None,
    name: str | None = None,
    prefixes: Mapping[str, str] | None = None,
) -> Graph:
    """The graph of three columns of names, of as many rows each; `source` is what errors call them."""
    if len({len(heads), len(relations), len(tails)}) > 1:
        raise UsageError(
            f"{source}: heads, relations and tails are not as many: {len(heads)}, {len(relations)}, {len(tails)}"
        )
    if not len(heads):
        raise SourceError(source, None, "no facts in it")
    options = ImportOptions(fractions=splits, seed=seed)
    table = FactTable.read({"train": [_Columns(Path(source), (heads, relations, tails))], "valid": [], "test": []})
    labels = labels or {}
    graph, counts = assembled(table, options, labels, labels)
    about = {"name": name or source, **counts, **({"prefixes": dict(prefixes)} if prefixes else {})}
    return Graph(graph.entities, graph.relations, graph.levels, about)


def graph_of_frame(frame: Any, columns: Sequence[str], **how: Any) -> Graph:
    """The graph of a pandas or polars data frame with a fact in each row; `columns` name head, relation and tail."""
    for name in columns:
        if name not in frame.columns:
            raise UsageError(f"there is no column {name!r}; there are {', '.join(map(repr, frame.columns))}")
    heads, relations, tails = (frame[name] for name in columns)
    return graph_of_columns(heads, relations, tails, source="DataFrame", **how)


def graph_of_triples(triples: Iterable[Sequence[Any]], *, source: str = "triples", **how: Any) -> Graph:
    """The graph of (head, relation, tail) by name."""
    rows = list(triples)
    for number, row in enumerate(rows, 1):
        if isinstance(row, str) or len(row) != len(FACT):
            raise SourceError(source, number, f"a fact has a head, a relation and a tail; this is {row!r}")
    heads, relations, tails = ([row[place] for row in rows] for place in range(len(FACT)))
    return graph_of_columns(heads, relations, tails, source=source, **how)


def graph_of_networkx(graph: Any, relation: str, **how: Any) -> Graph:
    """The graph of a networkx graph's edges: their relation is an attribute; of a multigraph also the edge's key."""
    triples = []
    keyed = graph.is_multigraph()
    edges = graph.edges(keys=True, data=True) if keyed else graph.edges(data=True)
    for head, tail, *key, attributes in edges:
        found = attributes.get(relation, key[0] if keyed and isinstance(key[0], str) else None)
        if found is None:
            raise UsageError(
                f"the edge from {head!r} to {tail!r} has no attribute {relation!r}: name the attribute that holds the "
                "relation (relation=...)"
            )
        triples.append((str(head), str(found), str(tail)))
    return graph_of_triples(triples, source="networkx", **how)


def graph_of_rdf(graph: Any, **how: Any) -> Graph:
    """The graph of an RDFLib graph: IRIs and blank nodes; literals are dropped, but for labels (rdfs:label)."""
    from rdflib import RDFS, Literal

    labels = {str(subject): str(label) for subject, label in graph.subject_objects(RDFS.label)}
    triples = [(str(head), str(between), str(tail)) for head, between, tail in graph if not isinstance(tail, Literal)]
    how["labels"] = {**labels, **(how.get("labels") or {})}
    prefixes = {prefix: str(iri) for prefix, iri in graph.namespaces() if prefix}
    return graph_of_triples(sorted(triples), source="rdf", prefixes=prefixes, **how)


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return any(is_such(kind) for is_such in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))
