"""Pickles as data: a reader of the format that can build plain data and nothing else.

A pickle is a program for a stack machine, and pickle's own machine imports and calls whatever the program names. The
published query sets need none of that: they are dictionaries and sets of nested tuples of numbers and strings. So this
is another machine for the same format; `pickletools` takes the program apart. It has the opcodes of plain data only,
imports nothing and calls nothing: `set`, `frozenset` and `defaultdict` are words that it knows, other names it refuses.

A subclass of `pickle.Unpickler` with its own `find_class` would be shorter and is not enough: extension codes can come
from a cache that it never sees, BUILD sets attributes, an index into the memo allocates that much memory, and hashing
tuples nested deep enough overflows the C stack. Here memory is bounded by a multiple of the file's size: every object
costs at least one byte of the file, and what is copied into sets is counted against it.

A `defaultdict` is returned as a plain `dict`, so that no key appears by being asked for. Integers have 64 bits at most.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from query2particles.errors import SourceError, UnsafePickleError, clipped

__all__ = ["safe_load"]

_LARGEST_FILE = 1 << 31
"""Bytes. The published files are far smaller; as objects, this many bytes would fill any memory."""

_LARGEST_KEY = 256
"""The parts of a tuple that may be hashed, nested ones included and shared ones each time: a query has twenty at most,
while a tuple of 2⁶⁴ parts, each twice in the next, fits into 200 bytes of file."""

_SCALARS = frozenset((int, str, float, bool, type(None)))


@dataclass(frozen=True, slots=True)
class _Name:
    """A class that the file names: a word on the stack, not the class. Left over as data, it does nothing."""

    word: str


_NAMES = {("collections", "defaultdict"): _Name("defaultdict")} | {
    (module, word): _Name(word)
    for module in ("builtins", "__builtin__")
    for word in ("set", "frozenset", "list", "dict", "int", "long")
}
"""What a file may name, Python 2's spelling and `long` included. Lists, dictionaries and integers have opcodes of their
own; their names only say what a `defaultdict` begins with."""


class _BrokenError(Exception):
    """The program is none."""


class _UnsafeError(Exception):
    """The program wants more than plain data."""


def safe_load(path: Path) -> object:
    """The plain data of a pickle: UnsafePickleError where the file wants more, SourceError where it is broken."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise SourceError(path, None, f"is larger than {_LARGEST_FILE >> 20} MiB, the limit for a pickle")
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(path, None, f"cannot be read: {error.strerror}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # what Python says of text with wrong escapes
            return _Machine(data).run()
    except _UnsafeError as error:
        raise UnsafePickleError(f"{path}: {error}; only plain data is read, so the file was not loaded") from None
    except (_BrokenError, ValueError, DeprecationWarning) as error:
        raise SourceError(path, None, f"is not a whole pickle: {error}") from error
    except LookupError as error:
        raise SourceError(path, None, "is not a whole pickle: it uses what it did not make") from error


class _Machine:
    """The stack machine. MARK puts the stack aside and begins a new one."""

    def __init__(self, data: bytes) -> None:
        self.data, self.copied = data, 0
        self.stack: list[Any] = []
        self.aside: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> object:
        for opcode, argument, _ in pickletools.genops(self.data):
            operation = _OPERATIONS.get(opcode.name)
            if operation is None:
                raise _UnsafeError(f"it has the opcode {opcode.name}")
            operation(self, argument)
        if self.aside or len(self.stack) != 1:
            raise _BrokenError("it ends with something other than one object")
        return self.stack[0]

    def marked(self) -> list[Any]:
        """What was pushed since the last MARK, off the stack."""
        items, self.stack = self.stack, self.aside.pop()
        return items

    def mark(self, _: None) -> None:
        self.aside.append(self.stack)
        self.stack = []

    def push(self, value: object) -> None:
        self.stack.append(value)

    def push_integer(self, value: int) -> None:
        if not -(1 << 63) <= value < 1 << 63:
            raise _BrokenError("an integer has more than 64 bits")
        self.push(value)

    def push_text(self, text: str) -> None:
        text.encode()  # ValueError: half a surrogate pair is no text
        self.push(text)

    def push_old_text(self, text: str) -> None:
        """Python 2's strings are bytes, here as Latin-1: they are UTF-8 where they can be."""
        try:
            self.push(text.encode("latin-1").decode())
        except UnicodeDecodeError:
            self.push(text)

    def push_name(self, module: object, word: object) -> None:
        if not isinstance(module, str) or not isinstance(word, str):
            raise _BrokenError("a name is not a string")
        name = _NAMES.get((module, word))
        if name is None:
            raise _UnsafeError(f"it names {clipped(f'{module}.{word}')!r}")
        self.push(name)

    def make_instance(self, name: str) -> None:
        """INST names a class and calls it at once: no plain data is written like this."""
        raise _UnsafeError(f"it makes an instance of {clipped(name.replace(' ', '.', 1))!r}")

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def make_tuple(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        if len(items) != count:
            raise _BrokenError(f"{count} objects should stand on the stack")
        self.stack[-count:] = [items]

    def make_dict(self, _: None) -> None:
        items = self.marked()
        self.push({})
        self.add(dict, items)

    def add(self, kind: type, items: list[Any]) -> None:
        """Add to the container on top of the stack; the items of a dict are keys and values in turn."""
        container = self.stack[-1]
        if type(container) is not kind:
            raise _BrokenError(f"there is no {kind.__name__} to add to")
        match container:
            case list():
                container.extend(items)
            case set():
                container.update(_hashable(items))
            case dict():
                container.update(zip(_hashable(items[::2]), items[1::2], strict=True))

    def call(self, _: None) -> None:
        """REDUCE. The calls that stand for plain data are understood here, and no other is."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if type(arguments) is not tuple or type(function) is not _Name:
            raise _UnsafeError("it calls something that it did not name")
        match function.word, arguments:
            case "set" | "frozenset" as word, (list() as items,):
                self.copied += len(items)
                if self.copied > len(self.data):
                    raise _UnsafeError("it copies the same members over and over")
                self.push((set if word == "set" else frozenset)(_hashable(items)))
            case "defaultdict", () | (None,) | (_Name("set" | "frozenset" | "list" | "dict" | "int" | "long"),):
                self.push({})
            case word, _:
                raise _UnsafeError(f"it calls {word!r} in a way that plain data does not need")


def _hashable(keys: list[Any]) -> list[Any]:
    """The keys, unless one is not plain, or too large or nested too deep to be hashed in one go."""
    for key in keys:
        if type(key) in _SCALARS:
            continue
        parts, waiting = 0, [key]
        while waiting:
            part = waiting.pop()
            if type(part) is tuple or type(part) is frozenset:
                parts += len(part)
                if parts > _LARGEST_KEY:
                    raise _UnsafeError(f"it has a key of more than {_LARGEST_KEY} parts")
                waiting.extend(part)
            elif type(part) not in _SCALARS:
                raise _BrokenError(f"a {type(part).__name__} cannot be a key")
    return keys


_OPERATIONS: dict[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, _: None),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"), _Machine.push),
    **dict.fromkeys(("INT", "LONG", "LONG1", "LONG4"), _Machine.push_integer),
    **dict.fromkeys(("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"), _Machine.push_text),
    **dict.fromkeys(("STRING", "SHORT_BINSTRING", "BINSTRING"), _Machine.push_old_text),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.remember),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, index: machine.push(machine.memo[index])),
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": _Machine.mark,
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.marked())),
    "TUPLE1": lambda machine, _: machine.make_tuple(1),
    "TUPLE2": lambda machine, _: machine.make_tuple(2),
    "TUPLE3": lambda machine, _: machine.make_tuple(3),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "LIST": lambda machine, _: machine.push(machine.marked()),
    "APPEND": lambda machine, _: machine.add(list, [machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.add(list, machine.marked()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "DICT": _Machine.make_dict,
    "SETITEM": lambda machine, _: machine.add(dict, [machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine, _: machine.add(dict, machine.marked()),
    "EMPTY_SET": lambda machine, _: machine.push(set()),
    "ADDITEMS": lambda machine, _: machine.add(set, machine.marked()),
    "FROZENSET": lambda machine, _: machine.push(frozenset(_hashable(machine.marked()))),
    "GLOBAL": lambda machine, name: machine.push_name(*name.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.push_name(machine.stack.pop(-2), machine.stack.pop()),
    "INST": _Machine.make_instance,
    "REDUCE": _Machine.call,
}
"""The opcodes of plain data. The others (BUILD, NEWOBJ, OBJ, EXT1, PERSID, POP, BINBYTES …) are refused."""
