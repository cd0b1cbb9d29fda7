"""The authors' folders open as graphs, their pickled queries are read, checked against the graph and converted."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from query2particles.engine.sets import Sets
from query2particles.errors import GraphError, QueryError, SourceError, UnsafePickleError, WorkloadError
from query2particles.graph.edges import Ints
from query2particles.graph.graph import SPLITS, Graph, Split, smaller
from query2particles.graph.originals import is_original_folder, open_original, original_names
from query2particles.query.algebra import (
    EPFO,
    SHAPES,
    Query,
    anchor_positions,
    ground,
    nickname,
    query_ids,
    shape_named,
)
from query2particles.query.nested import nested_template
from query2particles.workload.benchmark import check_set, read_set, write_set
from query2particles.workload.labels import Labels, label
from query2particles.workload.originals import check_original, convert_original, is_original_set, read_original
from worlds import oracle, random_graph, successors

DE_MORGAN = {
    ((("e", ("r", "n")), ("e", ("r", "n"))), ("n",)): "n(i(n(p(e)),n(p(e))))",
    ((("e", ("r", "n")), ("e", ("r", "n"))), ("n", "r")): "p(n(i(n(p(e)),n(p(e)))))",
}

BOX: dict[str, tuple[str, Callable[..., tuple[Any, ...]]]] = {
    "1c": ("1p", lambda e, r: ((e, (r,)),)),
    "2c": ("2p", lambda e, r, s: ((e, (r, s)),)),
    "3c": ("3p", lambda e, r, s, t: ((e, (r, s, t)),)),
    "2i": ("2i", lambda e, r, f, s: ((e, (r,)), (f, (s,)))),
    "3i": ("3i", lambda e, r, f, s, g, t: ((e, (r,)), (f, (s,)), (g, (t,)))),
    "ci": ("pi", lambda e, r, s, f, t: ((e, (r, s)), (f, (t,)))),
    "ic": ("ip", lambda e, r, f, s, t: ((e, (r,)), (f, (s,)), t)),
    "2u": ("2u", lambda e, r, f, s: ((e, (r,)), (f, (s,)))),
    "uc": ("up", lambda e, r, f, s, t: ((e, (r,)), (f, (s,)), t)),
}
"""Query2Box's tuples, as hyren/query2box reads them."""

Drawn = dict[Split, dict[Query, tuple[Ints, Labels]]]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(3, entities=20, relations=2, facts=260)


@pytest.fixture(scope="module")
def drawn(graph: Graph) -> Drawn:
    """Random queries of the fourteen shapes that have hard answers, ascending; 1p are all of a split, as published."""
    generator = np.random.default_rng(0)
    found: Drawn = {split: {} for split in SPLITS}
    for split in SPLITS:
        for name, shape in SHAPES.items():
            width = len(list(query_ids(shape)))
            limits = np.full(width, 2 * len(graph.relations))
            limits[anchor_positions(shape)] = len(graph.entities)
            ids = np.unique(generator.integers(limits, size=(400, width)), axis=0)
            if name == "1p":
                ids = np.argwhere(np.ones((len(graph.entities), 2 * len(graph.relations))))
            labels = label(graph, split, {shape: ids})[shape]
            kept = np.flatnonzero(labels.hard.sizes > 0)[: None if name == "1p" else 12]
            taken = Labels(*(sets.listed().take(kept) for sets in (labels.easy, labels.hard, labels.lost)))
            found[split][shape] = ids[kept], taken
            assert len(kept) >= 5
    return found


def tuples(lists: Any) -> Any:
    return tuple(map(tuples, lists)) if isinstance(lists, list) else lists


def nested(shape: Query, ids: Any) -> Any:
    """A query in BetaE's form."""
    return tuples(json.loads(nested_template(shape) % tuple(int(number) for number in ids)))


def structure(shape: Query) -> Any:
    """The structure of a shape in BetaE's form."""
    entities = set(anchor_positions(shape))

    def letters(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(letters, part))
        return {-1: "u", -2: "n"}.get(part) or ("e" if part in entities else "r")

    return letters(nested(shape, range(len(list(query_ids(shape))))))


def members(sets: Sets, row: int) -> set[int]:
    return set(sets[row].tolist())


def dump(path: Path, value: object, protocol: int) -> None:
    path.write_bytes(pickle.dumps(value, protocol))


def write_edges(folder: Path, graph: Graph) -> None:
    """Integer triples, each edge followed by its inverse, and the two counts."""
    folder.mkdir(exist_ok=True)
    known: set[tuple[int, int, int]] = set()
    for split in SPLITS:
        edges = {(h, r, t) for (h, r), tails in successors(graph, split).items() for t in tails}
        lines = [f"{h}\t{r}\t{t}\n{t}\t{r + 1}\t{h}\n" for h, r, t in sorted(edges - known) if r % 2 == 0]
        (folder / f"{split}.txt").write_text("".join(lines))
        known = edges
    counts = f"numentity: {len(graph.entities)}\nnumrelations: {2 * len(graph.relations)}"
    (folder / "stats.txt").write_text(counts)


def write_betae(folder: Path, graph: Graph, drawn: Drawn, protocol: int) -> None:
    write_edges(folder, graph)
    dump(folder / "id2ent.pkl", dict(enumerate(graph.entities.names(range(len(graph.entities))))), protocol)
    signed = [sign + name for name in graph.relations.names(range(len(graph.relations))) for sign in "+-"]
    dump(folder / "id2rel.pkl", dict(enumerate(signed)), protocol)
    for split in SPLITS:
        queries, easy, hard = defaultdict(set), defaultdict(set), defaultdict(set)
        for shape, (ids, labels) in drawn[split].items():
            for row, query in enumerate(nested(shape, one) for one in ids.tolist()):
                queries[structure(shape)].add(query)
                easy[query] = members(labels.easy, row)
                hard[query] = members(labels.hard, row)
        dump(folder / f"{split}-queries.pkl", queries, protocol)
        if split == "train":
            dump(folder / "train-answers.pkl", hard, protocol)
        else:
            dump(folder / f"{split}-easy-answers.pkl", easy, protocol)
            dump(folder / f"{split}-hard-answers.pkl", hard, protocol)


def write_query2box(folder: Path, graph: Graph, drawn: Drawn, protocol: int) -> None:
    """As in the authors' repository: no file of triples."""
    write_edges(folder, graph)
    for split in SPLITS:
        (folder / f"{split}.txt").unlink()
    dump(folder / "ind2ent.pkl", dict(enumerate(graph.entities.names(range(len(graph.entities))))), protocol)
    both = [name + end for name in graph.relations.names(range(len(graph.relations))) for end in ("", "_reverse")]
    dump(folder / "ind2rel.pkl", dict(enumerate(both)), protocol)
    for split in SPLITS:
        for code, (name, layout) in BOX.items():
            ids, labels = drawn[split][SHAPES[name]]
            keys = [layout(*row) for row in ids.tolist()]
            hard = {key: members(labels.hard, row) for row, key in enumerate(keys)}
            full = {key: hard[key] | members(labels.easy, row) for row, key in enumerate(keys)}
            dump(folder / f"{split}_ans_{code}.pkl", defaultdict(set, full), protocol)
            if split != "train":
                dump(folder / f"{split}_ans_{code}_hard.pkl", defaultdict(set, hard), protocol)


WRITERS = {"betae": write_betae, "query2box": write_query2box}


@pytest.fixture(params=[(layout, protocol) for layout in WRITERS for protocol in (2, 4)], ids=str)
def folder(request: pytest.FixtureRequest, tmp_path: Path, graph: Graph, drawn: Drawn) -> Path:
    layout, protocol = request.param
    WRITERS[layout](path := tmp_path / str(layout), graph, drawn, protocol)
    return path


@pytest.fixture
def betae(tmp_path: Path, graph: Graph, drawn: Drawn) -> Path:
    write_betae(tmp_path / "betae", graph, drawn, 4)
    return tmp_path / "betae"


@pytest.fixture
def query2box(tmp_path: Path, graph: Graph, drawn: Drawn) -> Path:
    write_query2box(tmp_path / "query2box", graph, drawn, 4)
    return tmp_path / "query2box"


def same_graph(one: Graph, other: Graph) -> bool:
    return one.fingerprint == other.fingerprint and all(
        successors(one, split) == successors(other, split) for split in SPLITS
    )


def test_the_folder_opens_as_the_graph(folder: Path, graph: Graph) -> None:
    assert is_original_folder(folder)
    opened = open_original(folder)
    assert same_graph(opened, graph)
    assert opened.name == folder.name


def test_every_query_comes_with_its_stored_answers(folder: Path, drawn: Drawn) -> None:
    assert is_original_set(folder)
    for split in SPLITS:
        found = read_original(folder, split)
        assert {nickname(shape) for shape in found} == set(EPFO if folder.name == "query2box" else SHAPES)
        for shape, queries in found.items():
            ids, labels = drawn[split][shape]
            assert queries.ids.tolist() == ids.tolist()
            for stored, wanted in ((queries.easy, labels.easy), (queries.hard, labels.hard)):
                assert [members(stored, row) for row in range(len(ids))] == [
                    members(wanted, row) for row in range(len(ids))
                ]


def test_shapes_are_chosen_by_name(folder: Path) -> None:
    assert [nickname(shape) for shape in read_original(folder, "valid", ["ip", "1p"])] in (["1p", "ip"], ["ip", "1p"])
    with pytest.raises(WorkloadError, match="no valid queries of"):
        read_original(folder, "valid", ["p(p(p(p(e))))"])
    with pytest.raises(QueryError):
        read_original(folder, "valid", ["4x"])


def test_the_stored_answers_agree_with_the_graph(folder: Path, graph: Graph) -> None:
    heard: list[int] = []
    checks = list(check_original(open_original(folder), folder, progress=heard.append))
    assert [check.problem for check in checks] == [None] * len(checks)
    assert len(checks) == 3 * (9 if folder.name == "query2box" else 14)
    assert all(check.checksum and check.queries and check.hard for check in checks)
    assert sum(heard) > sum(check.queries for check in checks)


def test_the_converted_set_agrees_with_the_graph(folder: Path, graph: Graph, drawn: Drawn, tmp_path: Path) -> None:
    convert_original(graph, folder, tmp_path / "out")
    checks = list(check_set(graph, tmp_path / "out"))
    assert [check.problem for check in checks] == [None] * len(checks)
    assert len(checks) == 3 * (9 if folder.name == "query2box" else 14)
    for split in SPLITS:
        for shape, ids in read_set(tmp_path / "out", split).items():
            assert ids.tolist() == drawn[split][shape][0].tolist()
        batch = {shape: ids for shape, (ids, _) in drawn[split].items()}
        write_set(
            tmp_path / "direct",
            graph,
            split,
            batch,
            {shape: labels for shape, (_, labels) in drawn[split].items()},
        )
    counts, direct = (json.loads((tmp_path / name / "counts.json").read_text()) for name in ("out", "direct"))
    for name, entry in counts.items():
        assert {**direct[name], "source": folder.name} == entry


def alter(path: Path, change: Callable[[Any], object]) -> None:
    table = pickle.loads(path.read_bytes())
    change(table)
    dump(path, table, 4)


def problems(graph: Graph, folder: Path) -> dict[str, str]:
    return {check.name: check.problem for check in check_original(graph, folder) if check.problem}


def test_differences_are_found(betae: Path, graph: Graph) -> None:
    victim = next(iter(pickle.loads((betae / "test-queries.pkl").read_bytes())[("e", ("r", "r"))]))
    alter(betae / "test-hard-answers.pkl", lambda table: table[victim].pop())
    alter(betae / "valid-easy-answers.pkl", lambda table: table.clear())
    found = problems(graph, betae)
    assert found["test-2p"] == "the hard answers of 1 queries differ from the stored ones"
    assert "easy answers" in found["valid-2p"]
    assert set(found) - {"test-2p"} <= {f"valid-{name}" for name in SHAPES}


def test_converted_differences_stay_visible(betae: Path, graph: Graph, tmp_path: Path) -> None:
    victim = next(iter(pickle.loads((betae / "test-queries.pkl").read_bytes())[("e", ("r", "r"))]))
    alter(betae / "test-hard-answers.pkl", lambda table: table[victim].pop())
    convert_original(graph, betae, tmp_path / "out")
    assert [check.name for check in check_set(graph, tmp_path / "out") if check.problem] == ["test-2p"]


def test_lost_answers_may_be_stored_as_easy(betae: Path, graph: Graph, drawn: Drawn) -> None:
    """The authors' program stores all answers on the smaller graph."""
    lost = 0

    def add(table: Any) -> None:
        nonlocal lost
        for shape, (ids, labels) in drawn["test"].items():
            for row, one in enumerate(ids.tolist()):
                table[nested(shape, one)] |= members(labels.lost, row)
                lost += len(labels.lost[row])

    alter(betae / "test-easy-answers.pkl", add)
    assert lost
    assert problems(graph, betae) == {}


def test_the_known_gap_of_query2box_is_no_problem(query2box: Path, graph: Graph, drawn: Drawn) -> None:
    """Its answers of 1p test queries lack some that validation edges give; elsewhere that is a problem."""

    def drop(table: Any) -> None:
        easy = drawn["test"][SHAPES["1p"]][1].easy
        row = int(np.argmax(easy.sizes > 0))
        head, relation = drawn["test"][SHAPES["1p"]][0][row].tolist()
        table[((head, (relation,)),)].discard(int(easy[row][0]))

    alter(query2box / "test_ans_1c.pkl", drop)
    assert problems(graph, query2box) == {}
    alter(query2box / "test_ans_2i.pkl", lambda table: table.clear())
    assert set(problems(graph, query2box)) == {"test-2i"}


def test_de_morgan_forms_are_shapes_of_their_own(betae: Path, graph: Graph) -> None:
    everything = frozenset(range(len(graph.entities)))
    large, small = (successors(graph, split) for split in ("test", smaller("test")))
    asked: dict[Any, list[int]] = {
        (((1, (0, -2)), (2, (3, -2))), (-2,)): [1, 0, 2, 3],
        (((1, (0, -2)), (2, (3, -2))), (-2, 1)): [1, 0, 2, 3, 1],
    }
    queries, easy, hard = {}, {}, {}
    for (form, spelled), (query, ids) in zip(DE_MORGAN.items(), asked.items(), strict=True):
        queries[form] = {query}
        easy[query] = oracle(ground(shape_named(spelled), ids), small, everything)
        hard[query] = oracle(ground(shape_named(spelled), ids), large, everything) - easy[query]
    alter(betae / "test-queries.pkl", lambda table: table.update(queries))
    alter(betae / "test-easy-answers.pkl", lambda table: table.update(easy))
    alter(betae / "test-hard-answers.pkl", lambda table: table.update(hard))
    found = read_original(betae, "test")
    assert {nickname(shape) for shape in found} == {*SHAPES, *DE_MORGAN.values()}
    assert [found[shape_named(spelled)].ids.tolist() for spelled in DE_MORGAN.values()] == [
        [row] for row in asked.values()
    ]
    assert problems(graph, betae) == {}
    assert set(map(nickname, read_original(betae, "test", SHAPES))) == set(SHAPES)


def test_branches_in_another_order_join_their_shape(betae: Path, graph: Graph, drawn: Drawn) -> None:
    """With the short branch of pi and pni first, ids are put into the shape's order."""
    turned: dict[Any, Any] = {}
    for name in ("pi", "pni"):
        ids = drawn["test"][SHAPES[name]][0][0].tolist()
        turned[structure(SHAPES[name])[::-1]] = nested(SHAPES[name], ids)[::-1]
    alter(betae / "test-queries.pkl", lambda table: table.update({form: {query} for form, query in turned.items()}))
    for kind in ("easy", "hard"):
        alter(
            betae / f"test-{kind}-answers.pkl",
            lambda table: table.update({query: table[query[::-1]] for query in turned.values()}),
        )
    found = read_original(betae, "test")
    for name in ("pi", "pni"):
        ids = drawn["test"][SHAPES[name]][0]
        assert found[SHAPES[name]].ids.tolist() == [*ids.tolist(), ids[0].tolist()]
    assert problems(graph, betae) == {}


def test_ids_are_names_where_nothing_names_them(betae: Path, graph: Graph) -> None:
    (betae / "id2ent.pkl").unlink()
    (betae / "id2rel.pkl").unlink()
    assert original_names(betae)[0] == [str(index) for index in range(20)]
    opened = open_original(betae)
    assert opened.relations.names(range(2)) == ["0", "2"]
    assert all(successors(opened, split) == successors(graph, split) for split in SPLITS)
    (betae / "stats.txt").unlink()
    assert is_original_folder(betae)
    assert open_original(betae).fingerprint == opened.fingerprint


def test_names_may_come_the_other_way_round(betae: Path, graph: Graph) -> None:
    for kind in ("ent", "rel"):
        table = pickle.loads((betae / f"id2{kind}.pkl").read_bytes())
        dump(betae / f"{kind}2id.pkl", {name: index for index, name in table.items()}, 4)
        (betae / f"id2{kind}.pkl").unlink()
    assert same_graph(open_original(betae), graph)


def test_triples_may_come_by_name(query2box: Path, graph: Graph) -> None:
    """Forward edges only, some of entities that have no id: those are left out, and counted."""
    known: set[tuple[int, int, int]] = set()
    for split in SPLITS:
        edges = {(h, r, t) for (h, r), tails in successors(graph, split).items() for t in tails if r % 2 == 0}
        lines = [f"e{h}\tr{r // 2}\te{t}\n" for h, r, t in sorted(edges - known)]
        (query2box / f"{split}.txt").write_text("".join([*lines, "e1\tr0\tnobody\n"]))
        known = edges
    opened = open_original(query2box)
    assert same_graph(opened, graph)
    assert opened.about["unseen_dropped"] == 3


def test_other_folders_are_not_original(tmp_path: Path, betae: Path) -> None:
    assert not is_original_folder(tmp_path)
    assert not is_original_folder(tmp_path / "missing")
    assert not is_original_set(tmp_path / "missing")
    (betae / "entities.tsv").write_text("0\tx\tx\n")  # the folder form, which has a reader of its own
    assert not is_original_folder(betae)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("id2ent.pkl", ["a", "b"], "dictionary"),
        ("id2ent.pkl", {0: "a", 2: "b"}, "each of the ids"),
        ("id2ent.pkl", {0: "a", "1": "b"}, "integers as ids"),
        ("stats.txt", "many", "pickle"),
        ("test-queries.pkl", [1], "expected a dictionary"),
        ("test-queries.pkl", {("e", ("x",)): set()}, "not understood"),
        ("test-queries.pkl", {("e",): set()}, "not understood"),
        ("test-queries.pkl", {5: set()}, "not understood"),
        ("test-queries.pkl", {("e", ("r",)): [(1, (2,))]}, "set of queries"),
        ("test-queries.pkl", {("e", ("r",)): {(1, (2, 3))}}, "has not the structure"),
        ("test-queries.pkl", {("e", ("r",)): {(1, (-2,))}}, "has not the structure"),
        ("test-queries.pkl", {("e", ("r",)): {(1, (2.0,))}}, "has not the structure"),
        ("test-queries.pkl", {("e", ("r",)): {(1, (True,))}}, "has not the structure"),
        ("test-queries.pkl", {("e", ("r",)): {(1, ("2",))}}, "has not the structure"),
        ("test-queries.pkl", {("e", ("r", "n")): {(1, (2, -12))}}, "has not the structure"),
        ("test-queries.pkl", {("e", ("r",)): {"nonsense"}}, "has not the structure"),
        ("test-hard-answers.pkl", {(1, (2,)): {20}}, "does not exist"),
        ("test-hard-answers.pkl", {(1, (2,)): {-1}}, "does not exist"),
        ("test-hard-answers.pkl", {(1, (2,)): {"3"}}, "integers"),
        ("test-hard-answers.pkl", {(1, (2,)): 3}, "sets of ids"),
    ],
)
def test_odd_files_say_what_is_wrong(betae: Path, name: str, value: object, reason: str) -> None:
    if name == "stats.txt":
        (betae / "id2ent.pkl").unlink()
        (betae / name).write_text(str(value))
        reason = "numentity"
    else:
        dump(betae / name, value, 4)
    if name == "test-hard-answers.pkl":
        dump(betae / "test-queries.pkl", {("e", ("r",)): {(1, (2,))}}, 4)
    with pytest.raises(SourceError, match=reason) as caught:
        read_original(betae, "test")
    assert caught.value.path == betae / name


def test_missing_files_are_named(betae: Path, query2box: Path) -> None:
    for path in (betae / "test-easy-answers.pkl", query2box / "test_ans_2i.pkl"):
        path.unlink()
        with pytest.raises(SourceError, match=path.name):
            read_original(path.parent, "test")
    for path in query2box.glob("valid_ans_*_hard.pkl"):
        path.unlink()
    with pytest.raises(WorkloadError, match="no valid queries"):
        read_original(query2box, "valid")


def test_edges_that_are_no_pairs_are_refused(betae: Path, query2box: Path) -> None:
    for split in SPLITS:
        lines = (betae / f"{split}.txt").read_text().splitlines()
        (betae / f"{split}.txt").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(SourceError, match="not the inverses"):
        open_original(betae)
    alter(betae / "id2rel.pkl", lambda table: table.popitem())
    with pytest.raises(GraphError, match="pairs of inverses"):
        open_original(betae)
    dump(query2box / "train_ans_1c.pkl", {((1, (2,)),): {500}}, 4)
    with pytest.raises(SourceError, match="does not exist"):
        open_original(query2box)
    dump(query2box / "train_ans_1c.pkl", {(1, (2,)): {3}}, 4)
    with pytest.raises(SourceError, match="expected"):
        open_original(query2box)


def test_a_set_of_another_graph_is_a_problem(betae: Path, tmp_path: Path) -> None:
    other = random_graph(1, entities=30, relations=2)
    assert all("entities" in problem for problem in problems(other, betae).values())
    fewer = random_graph(1, entities=20, relations=1)
    assert "ids that the graph does not have" in problems(fewer, betae)["train-1p"]
    with pytest.raises(WorkloadError, match="the graph has 30"):
        convert_original(other, betae, tmp_path / "out")


class Runs:
    """Pickled as a call that leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def test_hostile_pickles_do_not_run(betae: Path, tmp_path: Path) -> None:
    for name in ("test-easy-answers.pkl", "test-hard-answers.pkl", "test-queries.pkl", "id2ent.pkl"):
        dump(betae / name, {1: {Runs(tmp_path / "trace")}}, 4)
        with pytest.raises(UnsafePickleError, match=name):
            read_original(betae, "test")
    with pytest.raises(UnsafePickleError, match="id2ent"):
        open_original(betae)
    assert not (tmp_path / "trace").exists()
