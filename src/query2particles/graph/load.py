"""Import: source files in, `Graph` out.

`readers`, `tables`, `parquet` and `rdf` know the formats, `facts` turns names into ids and draws splits; here is what
a caller chooses, and which files that means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from query2particles.errors import SourceError, UsageError
from query2particles.graph.facts import FactTable, draw_splits
from query2particles.graph.graph import SPLITS, Graph, Split
from query2particles.graph.parquet import ParquetReader
from query2particles.graph.rdf import BlankNodes, RdfReader
from query2particles.graph.readers import FORMATS, Format, Meter, format_of, known_formats, legible, stem_of
from query2particles.graph.tables import FACT, LABEL, Column, TableReader, complaint
from query2particles.graph.vocabulary import Vocabulary, local_name

__all__ = [
    "ImportOptions",
    "assembled",
    "describe",
    "import_graph",
    "literal_labels",
    "no_facts",
    "source_files",
    "source_labels",
    "source_readers",
]

_SPLIT_STEMS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}


@dataclass(frozen=True)
class ImportOptions:
    """How sources are to be read."""

    format: Format | None = None
    """The format of every source; None: by each file's ending."""
    header: bool | None = None
    """Whether TSV and CSV files start with a header; None: where the first line names head, relation and tail."""
    columns: tuple[Column, Column, Column] | None = None
    """Head, relation and tail of TSV, CSV and Parquet: names in the header, or positions from 1."""
    delimiter: str | None = None
    """What separates cells in TSV and CSV, one ASCII character; None: tab, comma."""
    literals: bool = False
    """Keep RDF literals as entities, instead of counting and dropping them."""
    labels: Path | None = None
    """A TSV file with lines `name<TAB>label`, for entities and relations."""
    valid: Sequence[Path] = ()
    """Files with the facts of the validation split."""
    test: Sequence[Path] = ()
    """Files with the facts of the test split."""
    fractions: tuple[float, float] | None = None
    """Instead of files: draw this part of the facts for validation and this part for test."""
    seed: int = 0
    """Of that draw."""
    unseen: Literal["error", "drop"] = "error"
    """What happens to a validation or test fact with an entity or relation that no training fact has."""
    name: str | None = None
    """The graph's name; None: that of the first source."""
    attribution: str | None = None
    """Whom the data come from, and under which licence."""

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise UsageError(f"no format is called {self.format!r}; there are {', '.join(FORMATS)}")
        if self.columns is not None and len(self.columns) != len(FACT):
            raise UsageError(f"{len(self.columns)} columns are chosen; head, relation and tail make three")
        for column in self.columns or ():
            if isinstance(column, int) and column < 1:
                raise UsageError(f"no column {column}: they are counted from 1")
        if len(set(self.columns or ())) < len(self.columns or ()):
            raise UsageError("the same column is chosen twice")
        if self.header is False and any(isinstance(column, str) for column in self.columns or ()):
            raise UsageError("columns are chosen by name, but the files are said to have no header")
        if self.delimiter is not None and (
            len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n\0'
        ):
            raise UsageError(f"{self.delimiter!r} cannot separate cells: one ASCII character can, no quote or line end")
        if self.fractions is not None:
            if min(self.fractions) < 0 or not 0 < sum(self.fractions) < 1:
                raise UsageError(f"the fractions {self.fractions} do not leave a part of the facts for each split")
            if self.valid or self.test:
                raise UsageError("either validation and test files or fractions to draw, not both")
        if self.unseen not in ("error", "drop"):
            raise UsageError(f"unseen names are an 'error' or a reason to 'drop' a fact, not {self.unseen!r}")


def import_graph(
    sources: Sequence[Path],
    *,
    options: ImportOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """Read all sources into one graph.

    A source is a file, or a folder: with a training file in it its training, validation and test files, else all its
    files of a known format. `progress` is told how many bytes of how many are read.
    """
    options = options or ImportOptions()
    files = source_files(sources, options)
    meter = Meter(sum(path.stat().st_size for paths in files.values() for path in paths), progress)
    readers = source_readers(files, options, meter)
    table = FactTable.read(readers)
    meter.done = meter.total
    meter.tell()
    if not table.rows["train"]:
        raise no_facts(files)

    rdf = [reader for several in readers.values() for reader in several if isinstance(reader, RdfReader)]
    labels = source_labels(options.labels, rdf)
    graph, counts = assembled(table, options, labels, {**literal_labels(rdf), **labels})
    unknown = len(labels.keys() - set(table.entities) - set(table.relations)) if labels else 0
    return dataclasses.replace(graph, about=describe(sources, files, options, counts, rdf, unknown))


def assembled(
    table: FactTable, options: ImportOptions, labels: Mapping[str, str], entity_labels: Mapping[str, str]
) -> tuple[Graph, dict[str, Any]]:
    """The graph of facts as they were read, split as the options say, and what was dropped or drawn on the way."""
    if options.fractions is None:
        table, dropped = table.seen_only() if options.unseen == "drop" else (table.all_seen(), 0)
        facts = {split: table.facts(split) for split in SPLITS}
        counts: dict[str, Any] = {"unseen_dropped": dropped}
    else:
        facts, kept = draw_splits(
            table.facts("train"), len(table.entities), len(table.relations), options.fractions, options.seed
        )
        counts = {"split": {"fractions": list(options.fractions), "seed": options.seed, "kept_in_train": kept}}
    graph = Graph.of(
        Vocabulary.of(table.entities, _labelled(table.entities, entity_labels)),
        Vocabulary.of(table.relations, _labelled(table.relations, labels)),
        facts,
    )
    counts["duplicates"] = sum(table.rows.values()) - graph.at("test").facts
    return graph, counts


def no_facts(files: Mapping[Split, Sequence[Path]]) -> SourceError:
    """The error about training files in which there is nothing."""
    return SourceError(files["train"][0], None, "no facts in it" + " nor in the others" * (len(files["train"]) > 1))


def describe(
    sources: Sequence[Path],
    files: Mapping[Split, Sequence[Path]],
    options: ImportOptions,
    counts: Mapping[str, Any],
    rdf: Sequence[RdfReader],
    labels_unknown: int,
) -> dict[str, Any]:
    """What an import says about the graph: its name, where it comes from, and what was dropped on the way."""
    about: dict[str, Any] = {"name": legible(options.name or _name(sources[0]))}
    if options.attribution is not None:
        about["attribution"] = legible(options.attribution)
    about["sources"] = [legible(path.name) for paths in files.values() for path in paths]
    about |= counts
    about["literals_dropped"] = sum(reader.literals_dropped for reader in rdf)
    about["labels_unknown"] = labels_unknown
    prefixes, clashes = _prefixes(rdf)
    if prefixes:
        about["prefixes"] = prefixes
    if clashes:
        about["prefix_clashes"] = clashes
    return about


def literal_labels(rdf: Iterable[RdfReader]) -> dict[str, str]:
    """The label of each literal that is kept as an entity."""
    return {name: label for reader in rdf for name, label in reader.literal_labels.items()}


def source_files(sources: Sequence[Path], options: ImportOptions) -> dict[Split, list[Path]]:
    """The files of each split, all there and all of a known format."""
    if not sources:
        raise UsageError("no source is given")
    if options.labels is not None and not options.labels.is_file():
        raise UsageError(f"{options.labels}: no such file")
    files: dict[Split, list[Path]] = {"train": [], "valid": [], "test": []}
    for source in sources:
        if source.is_dir():
            for split, paths in _in_folder(source, options).items():
                files[split] += paths
        else:
            files["train"].append(source)
    if options.fractions is not None and (files["valid"] or files["test"]):
        raise UsageError("the source has splits of its own; none can be drawn")
    files["valid"] += options.valid
    files["test"] += options.test
    for path in (path for paths in files.values() for path in paths):
        if not path.is_file():
            raise UsageError(f"{path}: {'not a plain file' if path.exists() else 'no such file'}")
        if options.format is None and format_of(path) is None:
            raise UsageError(f"{path}: unknown format; known endings are {known_formats()}")
    return files


def _in_folder(folder: Path, options: ImportOptions) -> dict[Split, list[Path]]:
    """The split files of a folder where it has a training file, else all its files as training facts."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if options.labels is not None:
        paths = [path for path in paths if not path.samefile(options.labels)]
    if options.format is None:
        paths = [path for path in paths if format_of(path) is not None]
    named: dict[Split, list[Path]] = {"train": [], "valid": [], "test": []}
    for path in paths:
        if (split := _SPLIT_STEMS.get(stem_of(path).lower())) is not None:
            named[split].append(path)
    if named["train"]:
        return named
    # A lone .txt in a folder of data is a read-me more often than a table.
    paths = [path for path in paths if options.format is not None or ".txt" not in path.suffixes]
    if not paths:
        raise UsageError(f"{folder}: no file of a known format in it; known endings are {known_formats()}")
    return {"train": paths}


def _name(source: Path) -> str:
    """What to call a graph from this source: its file name, or the folder's where that only says `train`."""
    source = source.resolve()
    if source.is_dir():
        return source.name
    stem = stem_of(source)
    return stem if stem.lower() not in _SPLIT_STEMS else source.parent.name


def source_readers(
    files: Mapping[Split, Sequence[Path]], options: ImportOptions, meter: Meter
) -> dict[Split, list[TableReader | ParquetReader | RdfReader]]:
    blank_nodes = BlankNodes()

    def reader(path: Path) -> TableReader | ParquetReader | RdfReader:
        match options.format or format_of(path):
            case "parquet":
                return ParquetReader(path, meter, options.columns)
            case "nt" | "ttl" as kind:
                return RdfReader(path, meter, kind == "ttl", options.literals, blank_nodes)
            case kind:
                delimiter = options.delimiter or {"csv": ","}.get(str(kind), "\t")
                return TableReader(path, meter, delimiter, kind == "csv", options.header, options.columns)

    return {split: [reader(path) for path in paths] for split, paths in files.items()}


def source_labels(path: Path | None, rdf: Iterable[RdfReader]) -> dict[str, str]:
    """The label of each name that has one; the label file goes before RDF, what comes first before what follows."""
    labels: dict[str, str] = {}
    if path is not None:
        reader = TableReader(path, Meter(0), "\t", quoted=False, header=False, roles=LABEL)
        rows = 0
        for names, texts in reader.batches():
            for row, (name, text) in enumerate(zip(names.to_pylist(), texts.to_pylist(), strict=True), start=rows):
                for role, string in zip(LABEL, (name, text), strict=True):
                    if (wrong := complaint(string)) is not None:
                        raise SourceError(path, reader.line_of(row), f"the {role} {wrong}")
                labels.setdefault(name, text)
            rows += len(names)
    for source in rdf:
        for name, text in source.labels.items():
            labels.setdefault(name, text)
    return labels


def _labelled(names: Sequence[str], labels: Mapping[str, str]) -> list[str]:
    return [labels.get(name) or local_name(name) for name in names]


def _prefixes(rdf: Iterable[RdfReader]) -> tuple[dict[str, str], list[str]]:
    """The prefixes of all files, and those that a later file declares differently: the first one holds."""
    prefixes: dict[str, str] = {}
    clashes = set()
    for reader in rdf:
        for prefix, iri in reader.prefixes.items():
            if prefixes.setdefault(prefix, iri) != iri:
                clashes.add(prefix)
    return prefixes, sorted(clashes)
