"""Pickles of plain data come back; every other one is refused, and nothing of it has run."""

from __future__ import annotations

import collections
import contextlib
import copyreg
import functools
import os
import pickle
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query2particles.errors import SourceError, UnsafePickleError
from query2particles.graph.pickles import safe_load

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

QUERY = ((5, (7,)), (80_000, (300, -2)))
REAL = {
    "queries": collections.defaultdict(set, {(("e", ("r",)), ("e", ("r", "n"))): {QUERY, ((1, (2,)), (3, (4, -2)))}}),
    "answers": collections.defaultdict(set, {QUERY: {1, 255, 256, 65_535, 65_536, 2**31}, (3, (4, 5)): set()}),
    "names": {0: "/m/027rn", 1: "Zürich", 2: "𝔸", 3: "tab\tand\nline"},
    "numbers": [0, -1, 2**63 - 1, -(2**63), 0.25, float("inf"), True, False, None],
    "sets": (frozenset({1, 2}), frozenset(), {"x"}, (), (1, 2, 3, 4), [], {}, collections.defaultdict(None, {1: 2})),
    "kinds": [collections.defaultdict(kind, {1: kind()}) for kind in (set, list, dict, int, frozenset)],
    "repeated": [QUERY] * 300,
}


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def write_and_load(data: bytes) -> object:
        path = tmp_path / "some.pkl"
        path.write_bytes(data)
        return safe_load(path)

    return write_and_load


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_real_looking_data_come_back(load: Any, protocol: int) -> None:
    assert load(pickle.dumps(REAL, protocol)) == REAL
    large = {(head, (relation,)): set(range(head)) for head in range(300) for relation in range(4)}
    assert load(pickle.dumps(collections.defaultdict(set, large), protocol)) == large


def test_a_defaultdict_is_a_plain_dict(load: Any) -> None:
    found = load(pickle.dumps(collections.defaultdict(set, {1: {2}})))
    assert type(found) is dict
    with pytest.raises(KeyError):
        found[3]


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.floats(allow_nan=False)
FLAT = st.lists(SCALARS, max_size=3).map(tuple) | st.frozensets(SCALARS, max_size=3)
KEYS = SCALARS | FLAT | st.tuples(FLAT, SCALARS, FLAT)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    KEYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(KEYS, max_size=4)
    ),
    max_leaves=30,
)


@given(PLAIN, st.sampled_from(PROTOCOLS))
def test_any_plain_data_come_back(tmp_path_factory: pytest.TempPathFactory, value: Any, protocol: int) -> None:
    path = tmp_path_factory.getbasetemp() / "any.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    assert safe_load(path) == value


class Calls:
    """Pickled as a call of anything."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Plain:
    """Pickled by copyreg._reconstructor in protocols 0 and 1, by NEWOBJ in the others."""


def hostile(trace: str) -> dict[str, tuple[Any, str]]:
    """Objects whose pickles name something, and the name."""
    touch = f"__import__('pathlib').Path({trace!r}).touch()"
    system = f"{os.system.__module__}.system"  # posix.system: os.system has no other name in a pickle
    return {
        "eval": (Calls(eval, touch), "eval"),
        "exec": (Calls(exec, touch), "exec"),
        "getattr": (Calls(getattr, "x", "upper"), "getattr"),
        "system": (Calls(os.system, f"touch {trace}"), system),
        "partial": (functools.partial(print, 1), "functools.partial"),
        "open": (Calls(open, trace, "w"), "open"),
        "in a set": ({1, Calls(os.system, f"touch {trace}")}, system),
        "in a default": (collections.defaultdict(os.getcwd, {1: 2}), "getcwd"),
        "deep inside": ({(1, (2,)): [{3: (4, Calls(eval, touch))}]}, "eval"),
        "an array": (np.arange(3), "numpy"),
        "a number of numpy": ({np.int64(3)}, "numpy"),
        "an instance": (Plain(), "."),
        "an ordered dict": (collections.OrderedDict({1: 2}), "collections.OrderedDict"),
        "a counter": (collections.Counter("a"), "collections.Counter"),
        "a class": ({"kind": object}, "object"),
        "a range": (range(10**9), "range"),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("case", hostile(""))
def test_every_other_name_is_refused_by_name(load: Any, tmp_path: Path, case: str, protocol: int) -> None:
    trace = tmp_path / "trace"
    value, name = hostile(str(trace))[case]
    with pytest.raises(UnsafePickleError) as caught:
        load(pickle.dumps(value, protocol))
    assert name in str(caught.value)
    assert "some.pkl" in str(caught.value)
    assert not trace.exists()


def test_the_traps_would_have_worked(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    pickle.loads(pickle.dumps(hostile(str(trace))["in a set"][0]))
    assert trace.exists()


def test_old_reconstructors_are_named(load: Any) -> None:
    with pytest.raises(UnsafePickleError, match=r"copy_reg\._reconstructor"):
        load(pickle.dumps(Plain(), 0))


def test_no_module_is_imported(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    for program in (b"ctrap\nset\n.", b"\x80\x04\x8c\x04trap\x8c\x03set\x93.", b"(itrap\nset\n."):
        with pytest.raises(UnsafePickleError, match=r"trap\.set"):
            load(program)
    assert "trap" not in sys.modules
    assert not (tmp_path / "trace").exists()


def short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


@pytest.mark.parametrize(
    ("program", "reason"),
    {
        "a dotted name": (short("collections") + short("defaultdict.__init__") + b"\x93.", "defaultdict.__init__"),
        "a dotted builtin": (short("builtins") + short("set.__class__") + b"\x93.", "set.__class__"),
        "an innocent name": (b"cbuiltins\nstr\n.", "builtins.str"),
        "an instance": (b"(ios\nsystem\n.", "os.system"),
        "an instance of a set": (b"(ibuiltins\nset\n.", "builtins.set"),
        "a called class": (b"(cbuiltins\nset\no.", "OBJ"),
        "a new object": (b"cbuiltins\nset\n)\x81.", "NEWOBJ"),
        "a new object with keywords": (b"cbuiltins\nset\n)}\x92.", "NEWOBJ_EX"),
        "a state for a dictionary": (b"ccollections\ndefaultdict\n)R}b.", "BUILD"),
        "a state for a class": (b"cbuiltins\nset\n}U\x01xK\x01sb.", "BUILD"),
        "a persistent id": (b"P12\n.", "PERSID"),
        "a binary persistent id": (b"K\x01Q.", "BINPERSID"),
        "bytes": (b"C\x01a.", "SHORT_BINBYTES"),
        "a byte array": (b"\x96" + struct.pack("<Q", 1) + b"a.", "BYTEARRAY8"),
        "a buffer": (b"\x97.", "NEXT_BUFFER"),
        "two of the same": (b"K\x012.", "DUP"),
        "a call of a number": (b"K\x01)R.", "did not name"),
        "a call of a set": (b"\x8f)R.", "did not name"),
        "a call of a list": (b"cbuiltins\nlist\n(U\x03abctR.", "'list'"),
        "a call of an integer": (b"cbuiltins\nint\n(U\x031e9tR.", "'int'"),
        "a set of a string": (b"cbuiltins\nset\n(U\x03abctR.", "'set'"),
        "a default that calls": (b"ccollections\ndefaultdict\n(ccollections\ndefaultdict\ntR.", "'defaultdict'"),
        "a default with members": (b"ccollections\ndefaultdict\n(cbuiltins\nset\n}tR.", "'defaultdict'"),
        "a dict of pairs": (b"cbuiltins\ndict\n(]tR.", "'dict'"),
    }.values(),
)
def test_what_names_do_not_tell_is_refused(load: Any, program: bytes, reason: str) -> None:
    with pytest.raises(UnsafePickleError, match=reason.replace(".", r"\.")):
        load(program)


@pytest.mark.parametrize("program", [b"\x82\xf0.", b"\x83\xf0\x00.", b"\x84\xf0\x00\x00\x00."])
@pytest.mark.parametrize("cached", [False, True])
def test_registered_extensions_are_refused(load: Any, program: bytes, cached: bool) -> None:
    copyreg.add_extension("os", "system", 0xF0)
    try:
        if cached:  # from here on pickle's own machine asks no find_class about the code
            assert pickle.loads(program) is os.system
        with pytest.raises(UnsafePickleError, match="EXT"):
            load(program)
    finally:
        copyreg.remove_extension("os", "system", 0xF0)
        copyreg.clear_extension_cache()


def test_broken_files_are_source_errors(load: Any, tmp_path: Path) -> None:
    for protocol in PROTOCOLS:
        whole = pickle.dumps(REAL["queries"], protocol)
        for end in range(len(whole)):
            with pytest.raises(SourceError):
                load(whole[:end])
    with pytest.raises(SourceError, match="cannot be read"):
        safe_load(tmp_path / "missing.pkl")
    with pytest.raises(SourceError, match="cannot be read"):
        safe_load(tmp_path)


@pytest.mark.parametrize(
    "program",
    {
        "nothing": b"",
        "no pickle": b"head\trelation\ttail\n",
        "an unknown opcode": b"\xff.",
        "an empty stack": b".",
        "two objects": b"K\x01K\x02.",
        "an open mark": b"(K\x01.",
        "no mark": b"K\x01t.",
        "no list": b"K\x01K\x02a.",
        "no dictionary": b"]K\x01K\x02s.",
        "half a pair": b"}(K\x01u.",
        "an unhashable key": b"}]K\x01s.",
        "an unhashable member": b"\x8f(]\x90.",
        "a key with a list inside": b"}]\x85K\x01s.",
        "a class as key": b"}cbuiltins\nset\nK\x01s.",
        "nothing remembered": b"h\x07.",
        "a short tuple": b"K\x01\x86.",
        "a name of numbers": b"K\x01K\x02\x93.",
        "too large an integer": b"\x8a\x09" + b"\xff" * 8 + b"\x01.",
        "an integer of letters": b"Iabc\n.",
        "an integer without end": b"L" + b"9" * 5000 + b"L\n.",
        "half a surrogate pair": b"V\\ud800\n.",
        "no utf-8": b"\x8c\x01\xff.",
        "a string without quotes": b"Sabc\n.",
        "a long string that is not there": b"\x8d" + struct.pack("<Q", 2**62) + b"a.",
    }.values(),
)
def test_broken_programs_are_source_errors(load: Any, program: bytes) -> None:
    with pytest.raises(SourceError):
        load(program)


@pytest.mark.parametrize(
    ("program", "value"),
    [
        (b"\x80\x02U\x02\xc3\xbc.", "ü"),  # a Python 2 string in UTF-8
        (b"\x80\x02U\x01\xfc.", "ü"),  # and one in Latin-1
        (b"\x80\x02T\x01\x00\x00\x00\xfc.", "ü"),
        (b"S'it\\'s'\n.", "it's"),
        (b"(dp0\nI0\nS'/m/027rn'\np1\nsI1\nVZ\xfcrich\np2\ns.", {0: "/m/027rn", 1: "Zürich"}),
        (b"c__builtin__\nset\np0\n((lp1\nI1\naI2\natp2\nRp3\n.", {1, 2}),
        (
            b"\x80\x02ccollections\ndefaultdict\nc__builtin__\nset\n\x85RK\x01c__builtin__\nset\n]K\x02a\x85Rs.",
            {1: {2}},
        ),
        (b"I01\n.", True),
        (b"L12L\n.", 12),
        (b"K\x01.and what follows", 1),
    ],
)
def test_pickles_of_old(load: Any, program: bytes, value: object) -> None:
    assert load(program) == value


def test_a_far_place_in_the_memo_costs_nothing(load: Any) -> None:
    """In pickle's own machine the memo is an array: it allocates 64 GiB here."""
    assert load(b"K\x01r\xff\xff\xff\xff.") == 1


def test_small_files_cannot_grow(load: Any) -> None:
    doubled = b")" + b"\x85" + b"q\x00h\x00\x86" * 64  # each twice in the next: 2⁶⁴ parts
    deep = b")" + b"\x85" * 100_000  # hashing it would overflow the C stack
    copies = b"](" + b"K\x01" * 1000 + b"eq\x00(" + b"cbuiltins\nset\nh\x00\x85R" * 1000 + b"t\x86."
    started = time.monotonic()
    assert isinstance(load(doubled + b"."), tuple)
    for program in (b"}" + doubled + b"K\x01s.", b"\x8f(" + doubled + b"\x90.", b"}" + deep + b"K\x01s."):
        with pytest.raises(UnsafePickleError, match="parts"):
            load(program)
    with pytest.raises(UnsafePickleError, match="over and over"):
        load(copies)
    assert time.monotonic() - started < 5


def test_files_over_the_limit_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.pkl"
    with path.open("wb") as file:
        file.truncate((1 << 31) + 1)
    with pytest.raises(SourceError, match="larger than 2048 MiB"):
        safe_load(path)


def test_damaged_files_raise_nothing_else(load: Any) -> None:
    """A byte changed, lost or added anywhere: plain data, or one of the two errors."""
    generator = random.Random(0)
    wholes = [pickle.dumps(REAL, protocol) for protocol in PROTOCOLS]
    wholes += [pickle.dumps(value, 2) for value, _ in hostile("/nonexistent").values()]
    for _ in range(3000):
        data = bytearray(generator.choice(wholes))
        for _ in range(generator.randrange(1, 4)):
            at = generator.randrange(len(data))
            data[at : at + generator.randrange(3)] = generator.randbytes(generator.randrange(3))
        with contextlib.suppress(SourceError, UnsafePickleError):
            load(bytes(data))
