"""An index of a run's table: the best entities of a query without a look at most of the others.

The vectors lie in lists, by the centre that each has the largest inner product with (faiss, IVF). A query looks into
the lists of the few centres that suit its particles best, where one byte stands for every number; what is found there
is scored again, exactly, from the table itself. The bias of an entity rides along as one more coordinate, which is 1 in
every particle. The best of several particles are among the best of each.

How much that misses depends on the data, so it is measured when an index is made: on queries as the run's own model
encodes them, against the best of all entities. As few lists are looked into as reach the recall that was asked for;
where too many would be needed, no index is made. In the folder `index` of a run:

    index.json           which weights it belongs to, how many lists are looked into, and the recall measured
    centres.faiss        the centres
    lists.bin            the lists, codes and ids of each, memory-mapped; sizes.npy says how long they are

Probabilities need log Σ exp s(v) over all entities. What was found is summed; a sample, the same for all queries,
stands for the others. How far that is off is measured, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from query2particles.checkpoint import quoted
from query2particles.engine.sets import Sets
from query2particles.engine.table import Best, Table, best_rows
from query2particles.errors import RunError, UsageError, WorkloadError
from query2particles.files import new_folder, write_json
from query2particles.graph.edges import Ints

__all__ = ["FOLDER", "Figures", "Index", "Sample", "build_index", "is_index_file", "is_indexed", "open_index"]

Floats = npt.NDArray[np.float64]

FOLDER = "index"
"""Of a run folder."""

_FORMAT = 1
_ABOUT, _CENTRES, _SIZES, _LISTS = "index.json", "centres.faiss", "sizes.npy", "lists.bin"

_TRAINED_ON = 64
"""Vectors of each list that centres are learned from."""

_ADDED_AT_ONCE = 1 << 16
_HELD_AT_ONCE = 1 << 20
"""Vectors that are encoded together, and those that are held in memory before they go to disk."""

_FEWEST_CANDIDATES = 32
"""So many more than k are scored again, or as many more as k."""

_SAMPLE = 4096
"""Entities that stand for all that were not found."""

_MOST_PROBED = 4
"""Unless told otherwise, an index looks into one of so many lists at most."""


@dataclass(frozen=True)
class Figures:
    """What was measured, on how many queries."""

    lists: int
    probes: int
    """How many lists a particle looks into."""
    k: int
    recall: float
    """The share of the best k that is found."""
    queries: int
    log_total_error: float
    """By how much log Σ exp s(v) is off, in the mean."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Figures).items():
            if not isinstance(value := getattr(self, name), (int, kind)):
                raise TypeError(f"{name} is {value!r}")


@dataclass(frozen=True)
class Index:
    """A `Search` that looks at few entities."""

    table: Table
    lists: Any  # a faiss.IndexIVF
    sample: Sample
    figures: Figures

    def best(self, particles: Tensor, k: int, excluded: Sets | None = None) -> Best:
        """Nearly the best k. Where the lists hold fewer than there are, the table is asked, so that none is missing."""
        found = self.found(particles, k, excluded)
        closed = np.zeros(len(particles), dtype=np.int64) if excluded is None else excluded.sizes
        lacking = (found.entities >= 0).sum(1) < np.minimum(k, len(self.table) - closed)
        if not lacking.any():
            return found
        rows = (slice(row, row + 1) for row in range(len(particles)))
        return best_rows(
            [
                self.table.best(particles[row], k, excluded and excluded.rows(row.start, row.stop))
                if lacking[row.start]
                else found.rows(row)
                for row in rows
            ],
            k,
        )

    def found(self, particles: Tensor, k: int, excluded: Sets | None = None) -> Best:
        """What the lists give."""
        with torch.inference_mode():
            near = self._near(particles, k + max(k, _FEWEST_CANDIDATES), excluded)
            judged = self.table.judged(particles, near, near.shape[1], np.zeros(len(particles)))
            totals = self.sample.log_totals(particles, judged, excluded)
        return Best(judged.entities[:, :k], judged.scores[:, :k], totals)

    def as_json(self) -> dict[str, Any]:
        return {"by": "index", "exact": False, "recall": self.figures.recall, "recall_at": self.figures.k}

    def _near(self, particles: Tensor, count: int, excluded: Sets | None) -> Ints:
        """The ids (n, w · count) that the lists of each particle name; −1 where there are fewer."""
        n, w, _ = particles.shape
        asked = torch.cat([particles.float(), torch.ones(n, w, 1)], 2).numpy()
        if excluded is None or not len(excluded.values):
            return self._named(asked.reshape(n * w, -1), count).reshape(n, -1)
        assert not excluded.complemented, "what is excluded is listed"
        return np.stack([self._named(asked[row], count, excluded[row]).reshape(-1) for row in range(n)])

    def _named(self, asked: npt.NDArray[np.float32], count: int, closed: npt.NDArray[np.int32] | None = None) -> Ints:
        import faiss

        options: dict[str, Any] = {"nprobe": self.figures.probes}
        if closed is not None and len(closed):
            options["sel"] = faiss.IDSelectorNot(faiss.IDSelectorBatch(closed.astype(np.int64)))
        found: Ints = self.lists.search(asked, count, params=faiss.SearchParametersIVF(**options))[1]
        if found.size and not -1 <= found.min() <= found.max() < len(self.table):
            raise RunError("the index of this run is damaged: it names entities that are not there; make it anew")
        return found


@dataclass(frozen=True)
class Sample:
    """Some entities, that stand for all others."""

    entities: Ints
    rows: Table
    total: int

    @staticmethod
    def of(table: Table) -> Sample:
        entities = _drawn(len(table), _SAMPLE, seed=0)
        vectors, bias = table.vectors[torch.as_tensor(entities)], table.bias[torch.as_tensor(entities)]
        return Sample(entities, Table(vectors.float(), bias.float()), len(table))

    def log_totals(self, particles: Tensor, found: Best, excluded: Sets | None) -> Floats:
        """Of what is not excluded, log Σ exp s(v): what was found, and a sample of what was not."""
        totals = np.empty(len(particles))
        scores = self.rows.block(particles.float(), 0).double().numpy()
        for row, (entities, own) in enumerate(zip(found.entities, found.scores, strict=True)):
            there = entities >= 0
            closed = np.zeros(0, dtype=np.int32) if excluded is None else excluded[row]
            others = scores[row][~np.isin(self.entities, np.concatenate([entities[there], closed]))]
            left = self.total - len(closed) - np.count_nonzero(there)
            each = math.log(left / len(others)) if left and len(others) else 0.0  # that one of the sample stands for
            totals[row] = np.logaddexp.reduce(np.concatenate([own[there], others + each, [-np.inf]]))
        return totals


def is_index_file(name: str) -> bool:
    return name in (_ABOUT, _CENTRES, _SIZES, _LISTS)


def build_index(
    table: Table,
    queries: Sequence[Tensor],
    folder: Path,
    *,
    weights: str,
    recall: float = 0.95,
    k: int = 10,
    lists: int | None = None,
    most_probes: int | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> Index:
    """Make the index of a table, and write it to a folder; refused where the recall cannot be reached.

    `queries` are particles (n, w, d), in batches of any widths. Centres are learned from a sample, and vectors added in
    blocks, so that no more of either is in memory. `progress` hears how many vectors were added.
    """
    faiss = _faiss()
    if not 0 < recall <= 1:
        raise UsageError(f"a recall is above 0 and at most 1, not {recall}")
    if not sum(map(len, queries)):
        raise WorkloadError("there are no queries to measure the recall of an index by; name some (--queries)")
    lists = lists or max(1, round(math.sqrt(len(table))))
    if 4 * k > len(table):
        raise UsageError(
            f"an index is for few of many: k is at most a quarter of the {len(table):,} entities, not {k:,}"
        )
    if lists > len(table):
        raise UsageError(f"{lists:,} lists are more than the {len(table):,} entities; ask for fewer (--lists)")
    most = min(lists, most_probes or max(1, lists // _MOST_PROBED))
    with new_folder(folder, replaces=is_index_file) as partial:
        trained = _trained(table, lists)
        _fill(trained, table, partial, progress)
        faiss.write_index(trained, str(partial / _CENTRES))
        measured = _measured(table, _opened_lists(partial), queries, recall=recall, k=k, most=most)
        write_json(
            partial / _ABOUT,
            {
                "format": _FORMAT,
                "weights": weights,
                "entities": len(table),
                "dimension": table.vectors.shape[1],
                "figures": asdict(measured),
            },
        )
    return Index(table, _opened_lists(folder), Sample.of(table), measured)


def open_index(folder: Path, table: Table, *, weights: str, again: str) -> Index:
    """The index in a folder, if it belongs to these weights; `again` is the command that makes it anew."""
    try:
        document = json.loads((folder / _ABOUT).read_text("utf-8"))
        made_for = document["format"], (document["entities"], document["dimension"])
        made_of, figures = document["weights"], Figures(**document["figures"])
        lists = _opened_lists(folder)
        whole = (lists.ntotal, lists.nlist) == (len(table), figures.lists) and 0 < figures.probes <= figures.lists
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise RunError(f"the index in {folder} cannot be read ({quoted(error)}); make it anew: {again}") from error
    if made_of != weights:
        raise RunError(
            f"the index in {folder} belongs to other weights than the run has now, and would answer for those: make it "
            f"anew ({again}), or go without (--search exact)"
        )
    if not whole or made_for != (_FORMAT, tuple(table.vectors.shape)):
        raise RunError(f"the index in {folder} is not of this table, or of another version; make it anew: {again}")
    return Index(table, lists, Sample.of(table), figures)


def is_indexed(folder: Path) -> bool:
    """Whether a run folder has an index."""
    return (folder / FOLDER / _ABOUT).is_file()


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError:
        raise UsageError("an index needs faiss: pip install 'query2particles[index]'") from None
    return faiss


def _opened_lists(folder: Path) -> Any:
    """The lists where they lie on disk."""
    faiss = _faiss()
    lists = faiss.read_index(str(folder / _CENTRES))
    sizes = np.load(folder / _SIZES)
    mapped = faiss.OnDiskInvertedLists()
    mapped.nlist, mapped.code_size = lists.nlist, lists.code_size
    mapped.filename, mapped.read_only = str(folder / _LISTS), True
    mapped.prefetch_nthread = 0  # threads that read ahead take longer than a search
    offset = 0
    for size in sizes.tolist():
        one = faiss.OnDiskOneList()
        one.size, one.capacity, one.offset = size, _capacity(size), offset
        mapped.lists.push_back(one)
        offset += _capacity(size) * _bytes_of_one(lists)
    if len(sizes) != lists.nlist or (folder / _LISTS).stat().st_size != offset:
        raise ValueError(f"{_LISTS} is not as long as its lists")
    mapped.totsize = offset
    mapped.do_mmap()
    lists.replace_invlists(mapped, True)
    mapped.this.disown()
    lists.ntotal = int(sizes.sum())
    return lists


def _capacity(size: int) -> int:
    """Room for so many keeps ids, which follow the codes of a list, at places that are multiples of their size."""
    return -(-size // 8) * 8


def _bytes_of_one(lists: Any) -> int:
    """Its code and its id."""
    return int(lists.code_size) + 8


def _trained(table: Table, lists: int) -> Any:
    """Empty lists with their centres."""
    faiss = _faiss()
    d = table.vectors.shape[1] + 1
    inner_product = faiss.METRIC_INNER_PRODUCT
    quantizer = faiss.IndexFlatIP(d)
    trained = faiss.IndexIVFScalarQuantizer(quantizer, d, lists, faiss.ScalarQuantizer.QT_8bit, inner_product)
    quantizer.this.disown()
    trained.own_fields = True
    trained.cp.spherical = True  # were centres of any length, the longest would draw most vectors into their lists
    trained.cp.min_points_per_centroid = 1
    trained.cp.max_points_per_centroid = _TRAINED_ON
    sample = torch.as_tensor(_drawn(len(table), _TRAINED_ON * lists, seed=1))
    trained.train(_coordinates(table.vectors[sample].float(), table.bias[sample].float()))
    return trained


def _fill(trained: Any, table: Table, folder: Path, progress: Callable[[int], object]) -> None:
    """Add all vectors: some at a time go to a file, then list by list to the one where they are mapped from."""
    faiss = _faiss()
    parts = []
    for first in range(0, len(table), _HELD_AT_ONCE):
        some = faiss.clone_index(trained)
        last = min(first + _HELD_AT_ONCE, len(table))
        for start in range(first, last, _ADDED_AT_ONCE):
            stop = min(start + _ADDED_AT_ONCE, last)
            some.add_with_ids(_coordinates(*table.rows(start, stop)), np.arange(start, stop))
            progress(stop - start)
        parts.append(folder / f"{first}.part")
        faiss.write_index(some, str(parts[-1]))
    mapped = [faiss.read_index(str(part), faiss.IO_FLAG_MMAP) for part in parts]
    sizes = np.zeros(trained.nlist, dtype=np.int64)
    with (folder / _LISTS).open("wb") as file:
        for number in range(trained.nlist):
            several = [(one.invlists, one.invlists.list_size(number)) for one in mapped]
            sizes[number] = size = sum(size for _, size in several)
            room = _capacity(size) - size
            for lists, own in several:
                file.write(faiss.rev_swig_ptr(lists.get_codes(number), own * trained.code_size).tobytes())
            file.write(bytes(room * trained.code_size))
            for lists, own in several:
                file.write(faiss.rev_swig_ptr(lists.get_ids(number), own).tobytes())
            file.write(bytes(room * 8))
    np.save(folder / _SIZES, sizes)
    for part in parts:
        part.unlink()


def _measured(table: Table, lists: Any, queries: Sequence[Tensor], *, recall: float, k: int, most: int) -> Figures:
    """The fewest lists to look into that reach the recall."""
    exact = [table.best(some, k) for some in queries]
    sample = Sample.of(table)
    count = sum(map(len, queries))

    def with_probes(probes: int) -> Figures:
        figures = Figures(lists.nlist, probes, k, 0.0, count, 0.0)
        index = Index(table, lists, sample, figures)
        pairs = [(index.found(some, k), best) for some, best in zip(queries, exact, strict=True)]
        hits = sum(np.count_nonzero(near.scores >= best.scores[:, -1:]) for near, best in pairs)
        off = sum(np.abs(near.log_totals - best.log_totals).sum() for near, best in pairs)
        share = math.floor(10_000 * hits / sum(best.scores.size for best in exact)) / 10_000  # no less than it says
        return replace(figures, recall=share, log_total_error=round(float(off / count), 4))

    fewest, found = 0, with_probes(1)  # one looks into too few lists, the other is what was measured last
    while found.recall < recall and found.probes < most:
        fewest, found = found.probes, with_probes(min(2 * found.probes, most))
    if found.recall < recall:
        raise RunError(
            f"a recall of {recall} cannot be reached by looking into {most:,} of {lists.nlist:,} lists: that finds "
            f"{found.recall} of the best {k}. Ask for less (--recall), allow more lists (--most-probes), or answer "
            "exactly, without an index"
        )
    while found.probes - fewest > 1:
        middle = with_probes((fewest + found.probes) // 2)
        fewest, found = (fewest, middle) if middle.recall >= recall else (middle.probes, found)
    return found


def _coordinates(vectors: Tensor, bias: Tensor) -> npt.NDArray[np.float32]:
    """[e, b]: (n, d + 1)."""
    found: npt.NDArray[np.float32] = torch.cat([vectors, bias[:, None]], 1).numpy()
    return found


def _drawn(entities: int, count: int, *, seed: int) -> Ints:
    """Some ids, or all, ascending."""
    if count >= entities:
        return np.arange(entities)
    return np.sort(np.random.default_rng(seed).choice(entities, count, replace=False))
