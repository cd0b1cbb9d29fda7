"""Names and labels: found by bisection, suggested when misspelled, the same after a round trip."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query2particles.errors import GraphError
from query2particles.graph import vocabulary
from query2particles.graph.vocabulary import Vocabulary

NAMES = st.lists(st.text(max_size=8), unique=True, max_size=40)


@given(NAMES, st.data())
def test_every_name_is_found_and_no_other(names: list[str], data: st.DataObject) -> None:
    words = Vocabulary.of(names)
    assert [words.find(name) for name in names] == list(range(len(names)))
    assert [words.name(index) for index in range(len(names))] == names
    other = data.draw(st.text(max_size=5))
    assert words.find(other) == (names.index(other) if other in names else None)


@given(st.lists(st.sampled_from("abc"), max_size=20))
def test_labels_may_repeat(labels: list[str]) -> None:
    words = Vocabulary.of([f"{index}" for index in range(len(labels))], labels)
    for letter in "abcd":
        assert words.find_label(letter) == [index for index, label in enumerate(labels) if label == letter]


def test_a_name_stands_for_one_id() -> None:
    with pytest.raises(GraphError, match="two ids"):
        Vocabulary.of(["a", "b", "a"])
    with pytest.raises(GraphError, match="labels"):
        Vocabulary.of(["a", "b"], ["a"])


def test_nearest_names() -> None:
    words = Vocabulary.of(["Canada", "Canberra", "Kenya", "e_17"], ["Canada", "Canberra", "Kenya", "Granada"])
    assert words.nearest("Canda")[0] == "Canada"
    assert words.nearest("granda")[0] == "e_17"
    assert words.nearest("zzzz") == []


def test_nearest_names_of_a_large_vocabulary_come_from_the_sorted_neighbourhood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vocabulary, "_SCAN", 40)
    words = Vocabulary.of([f"x{number:03}" for number in range(100)] + ["Canada"])
    assert words.nearest("Canadaa", 1) == ["Canada"]


def test_the_last_part_of_an_iri_is_near_whatever_its_label() -> None:
    names = ["http://example.org/knows", "http://example.org/people#likes", "http://example.com/knows"]
    labelled = Vocabulary.of(names, ["is acquainted with", "is fond of", "ist bekannt mit"])
    assert labelled.nearest("knows") == [names[0], names[2]]
    assert labelled.nearest("lkes") == [names[1]]
    assert Vocabulary.of(names, ["knows", "likes", "knows"]).nearest("know") == [names[0], names[2]]
    assert Vocabulary.of(names).nearest("Knows") == [names[0], names[2]]


def test_nearest_labels_of_a_large_vocabulary_come_from_their_neighbourhood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_SCAN", 40)
    labels = [f"x{number:03}" for number in range(100)] + ["knows"]
    words = Vocabulary.of([f"http://example.org/{label}" for label in labels], labels)
    assert words.nearest("knws") == ["http://example.org/knows"]


def test_completion() -> None:
    words = Vocabulary.of(["Paris (France)", "Paris (Texas)", "Parma", "Rome"], ["Paris", "Paris", "Parma", "Paradise"])
    assert words.starting_with("Par") == [0, 1, 2, 3]
    assert words.starting_with("Paris (T") == [1]
    assert words.starting_with("Par", limit=2) == [0, 1]


@given(NAMES)
def test_saved_and_opened_it_is_the_same(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    folder: Path = tmp_path_factory.mktemp("vocabulary")
    labels = [name.upper() for name in names]
    words = Vocabulary.of(names, labels)
    words.save(folder, "entities")
    again = Vocabulary.open(folder, "entities")
    assert [again.name(i) for i in range(len(again))] == names
    assert [again.label(i) for i in range(len(again))] == labels
    assert again.fingerprint == words.fingerprint


@given(st.lists(st.text(max_size=8), unique=True, min_size=1, max_size=40), st.data())
def test_of_many_names_only_those_on_the_way_are_read(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], data: st.DataObject
) -> None:
    """Damage elsewhere may not be seen; on the way it is the one error, never another name."""
    folder: Path = tmp_path_factory.mktemp("vocabulary")
    Vocabulary.of(names).save(folder, "entities")
    path = folder / f"entities-names-{data.draw(st.sampled_from(['offsets', 'order']))}.npy"
    numbers = np.load(path)
    numbers[data.draw(st.integers(0, len(numbers) - 1))] = data.draw(st.sampled_from([-1, 2**40, len(names)]))
    np.save(path, numbers)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(GraphError):
        patch.setattr(vocabulary, "_CHECKED", 0)
        words = Vocabulary.open(folder, "entities")
        for name in names:
            with contextlib.suppress(GraphError):
                found = words.find(name)
                assert found is None or words.name(found) == name


def test_many_names_are_looked_up_without_reading_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"name {number * 7919 % 1000}" for number in range(1000)]
    Vocabulary.of(names).save(tmp_path, "entities")
    monkeypatch.setattr(vocabulary, "_CHECKED", 999)
    words = Vocabulary.open(tmp_path, "entities")
    read: list[int] = []
    raw = vocabulary._Strings.raw

    def noted(strings: vocabulary._Strings, index: int) -> bytes:
        read.append(index)
        return raw(strings, index)

    monkeypatch.setattr(vocabulary._Strings, "raw", noted)
    assert words.find(names[123]) == 123
    assert words.find("nothing") is None
    assert len(read) < 30
