r"""The embeddings of a trained model, for use elsewhere: with their names, in one file.

    safetensors   tensors `entities` (N, d), `relations` (2R, d), `offsets` (K, d) and, where there is one, `bias` (N,);
                  the metadata hold the names in the order of the rows, as JSON lists
    parquet       one row for each entity and directed relation: kind, name, label, bias, embedding
    tsv           the same as text, numbers exact; tab, newline, return and backslash as \t, \n, \r, \\

Directed relation 2k is relation k as stored; 2k + 1 its inverse, whose name has `^` before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from query2particles.errors import UsageError
from query2particles.files import new_file
from query2particles.graph.graph import Graph

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from query2particles.methods.q2p import Q2P

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


def export_embeddings(graph: Graph, model: Q2P, target: Path, form: Format) -> int:
    """Write the embeddings to a file, in one step; how many vectors there are."""
    with new_file(target) as partial:
        match form:
            case "safetensors":
                _write_safetensors(graph, model, partial)
            case "parquet":
                _write_parquet(graph, model, partial)
            case "tsv":
                _write_tsv(graph, model, partial)
    return len(model.entities) + len(model.relations)


def _write_safetensors(graph: Graph, model: Q2P, path: Path) -> None:
    from safetensors.torch import save_file

    own = {"entities": model.entities, "relations": model.relations, "offsets": model.offsets, "bias": model.bias}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in own.items() if tensor is not None}
    names = {
        "entities": [name for kind, name, *_ in _named(graph) if kind == "entity"],
        "relations": [name for kind, name, *_ in _named(graph) if kind == "relation"],
    }
    about = {"graph": graph.name, "fingerprint": graph.fingerprint}
    save_file(tensors, path, {**about, **{key: json.dumps(value, ensure_ascii=False) for key, value in names.items()}})


def _write_parquet(graph: Graph, model: Q2P, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    kinds, names, labels = zip(*_named(graph), strict=True)
    vectors, bias = _rows(model)
    table = pa.table(
        {
            "kind": pa.array(kinds).dictionary_encode(),
            "name": list(names),
            "label": list(labels),
            "bias": pa.array(bias, pa.float32()),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
        },
        metadata={"graph": graph.name, "fingerprint": graph.fingerprint},
    )
    parquet.write_table(table, path)


def _write_tsv(graph: Graph, model: Q2P, path: Path) -> None:
    vectors, bias = _rows(model)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        columns = "\t".join(f"x{number}" for number in range(vectors.shape[1]))
        file.write(f"kind\tname\tlabel\tbias\t{columns}\n")
        for (kind, name, label), own, vector in zip(_named(graph), bias, vectors.tolist(), strict=True):
            cells = [kind, name.translate(_ESCAPES), label.translate(_ESCAPES), "" if own is None else f"{own:.9g}"]
            file.write("\t".join([*cells, *(f"{number:.9g}" for number in vector)]) + "\n")


def _named(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Kind, name and label of every row: entities, then directed relations."""
    for index in range(len(graph.entities)):
        yield "entity", graph.entities.name(index), graph.entities.label(index)
    for directed in range(2 * len(graph.relations)):
        yield "relation", graph.relation_name(directed), "^" * (directed % 2) + graph.relations.label(directed // 2)


def _rows(model: Q2P) -> tuple[npt.NDArray[np.float32], list[Any]]:
    """The vectors in the order of the names, and the bias of each; relations have none."""
    import torch

    vectors = torch.cat([model.entities, model.relations]).detach().cpu().float().numpy()
    bias = [None] * len(model.entities) if model.bias is None else model.bias.detach().cpu().tolist()
    return vectors, bias + [None] * len(model.relations)
