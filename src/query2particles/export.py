r"""The embeddings of a trained model, for use elsewhere: with their names, in one file.

    safetensors   all tables of the method, such as `entities` (N, d), `relations` (2R, d) and, where there is one,
                  `bias` (N,); the metadata hold the names in the order of the rows, as JSON lists
    parquet       one row for each entity and directed relation, if the method has vectors of them: kind, name, label,
                  bias, embedding
    tsv           the same as text, numbers exact; tab, newline, return and backslash as \t, \n, \r, \\

Directed relation 2k is relation k as stored; 2k + 1 its inverse, whose name has `^` before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from query2particles.errors import UsageError
from query2particles.files import new_file
from query2particles.graph.graph import Graph

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["FORMATS", "Format", "export_embeddings", "format_of"]

Format: TypeAlias = Literal["safetensors", "parquet", "tsv"]
FORMATS: tuple[Format, ...] = get_args(Format)

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def format_of(target: Path) -> Format:
    """The format that a file's ending names."""
    for name in FORMATS:
        if target.suffix == f".{name}":
            return name
    raise UsageError(
        f"{target.name} ends in no format that embeddings are written in; say --format {'|'.join(FORMATS)}"
    )


def export_embeddings(graph: Graph, model: nn.Module, target: Path, form: Format) -> tuple[int, int]:
    """Write the embeddings to a file, in one step; how many vectors there are, and how long one of an entity is."""
    from query2particles.methods.registry import trainee_of

    own = trainee_of(model).named_parameters(recurse=False)
    tables = {name: table.detach().cpu().float().contiguous() for name, table in own}
    write = {"safetensors": _write_safetensors, "parquet": _write_parquet, "tsv": _write_tsv}[form]
    with new_file(target) as partial:
        write(graph, tables, partial)
    vectors = _vectors(tables)
    return len(vectors), len(vectors[0])


def _write_safetensors(graph: Graph, tables: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    names = {
        "entities": [name for kind, name, *_ in _named(graph) if kind == "entity"],
        "relations": [name for kind, name, *_ in _named(graph) if kind == "relation"],
    }
    about = {"graph": graph.name, "fingerprint": graph.fingerprint}
    save_file(tables, path, {**about, **{key: json.dumps(value, ensure_ascii=False) for key, value in names.items()}})


def _write_parquet(graph: Graph, tables: dict[str, Tensor], path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    vectors, bias = _vectors(tables), _bias(tables)
    kinds, names, labels = zip(*islice(_named(graph), len(vectors)), strict=True)
    lengths = set(map(len, vectors))
    table = pa.table(
        {
            "kind": pa.array(kinds).dictionary_encode(),
            "name": list(names),
            "label": list(labels),
            "bias": pa.array(bias, pa.float32()),
            "embedding": pa.array(vectors, pa.list_(pa.float32(), lengths.pop() if len(lengths) == 1 else -1)),
        },
        metadata={"graph": graph.name, "fingerprint": graph.fingerprint},
    )
    parquet.write_table(table, path)


def _write_tsv(graph: Graph, tables: dict[str, Tensor], path: Path) -> None:
    vectors = _vectors(tables)
    width = max(map(len, vectors))
    with path.open("w", encoding="utf-8", newline="\n") as file:
        columns = "\t".join(f"x{number}" for number in range(width))
        file.write(f"kind\tname\tlabel\tbias\t{columns}\n")
        for (kind, name, label), own, vector in zip(_named(graph), _bias(tables), vectors, strict=False):
            cells = [kind, name.translate(_ESCAPES), label.translate(_ESCAPES), "" if own is None else f"{own:.9g}"]
            cells += [f"{number:.9g}" for number in vector] + [""] * (width - len(vector))
            file.write("\t".join(cells) + "\n")


def _named(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Kind, name and label of every row: entities, then directed relations."""
    for index in range(len(graph.entities)):
        yield "entity", graph.entities.name(index), graph.entities.label(index)
    for directed in range(2 * len(graph.relations)):
        yield "relation", graph.relation_name(directed), graph.relation_label(directed)


def _vectors(tables: dict[str, Tensor]) -> list[list[float]]:
    """Those of the entities, then those of the directed relations, if the method has some."""
    several = [tables[name].flatten(1).tolist() for name in ("entities", "relations") if name in tables]
    return [vector for vectors in several for vector in vectors]


def _bias(tables: dict[str, Tensor]) -> list[float | None]:
    """In the order of the vectors; relations have none."""
    count = sum(len(tables[name]) for name in ("entities", "relations") if name in tables)
    bias: list[float | None] = tables["bias"].tolist() if "bias" in tables else []
    return bias + [None] * (count - len(bias))
