"""Crash-safe files: everything is written beside its place and renamed into it.

A process that is killed at any moment leaves the old file or folder, or the new one, and at worst a hidden
`.NAME.partial-PID` beside it, which the next writer of the same place removes. Writers in one folder wait for each
other (a lock on that folder, which goes with the process).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from query2particles.errors import UsageError

__all__ = [
    "check_nothing_else",
    "check_replaceable",
    "check_writable",
    "new_file",
    "new_folder",
    "remove_leftovers",
    "write_json",
]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield a path to write to; on success it takes the place of `target` in one step, on error it vanishes."""
    target = target.resolve()
    _check_no_folder(target)
    with _locked(target.parent):
        remove_leftovers(target)
        partial = _partial(target)
        try:
            yield partial
            _flush(partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        _flush(target.parent)


@contextlib.contextmanager
def new_folder(target: Path, *, replaces: Callable[[str], bool]) -> Iterator[Path]:
    """Yield an empty folder to fill; on success it takes the place of `target` in one step, on error it vanishes.

    A folder that is there already is replaced only if `replaces` says so of the name of everything in it: nothing is
    lost that we did not write. Where `target` is a link, what it points to is replaced.
    """
    target = target.resolve()
    with _locked(target.parent):
        check_replaceable(target, replaces)
        remove_leftovers(target)
        partial = _partial(target)
        partial.mkdir()
        try:
            yield partial
            for path in sorted(partial.rglob("*")):
                _flush(path)
            _flush(partial)
            if target.exists():
                _exchange(partial, target)
            else:
                partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        _flush(target.parent)


def write_json(path: Path, document: object) -> None:
    with new_file(path) as partial:
        partial.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", "utf-8")


def check_writable(target: Path) -> None:
    """Refuse a file that could not be written there: before work whose result would be lost. Nothing is left behind."""
    target = target.resolve()
    _check_no_folder(target)
    _check_place(target)


def check_replaceable(target: Path, replaces: Callable[[str], bool]) -> None:
    """Refuse to replace a file, or a folder that holds something of another kind; or where none could be made."""
    if target.is_dir():
        check_nothing_else(target, replaces)
    elif target.exists():
        raise UsageError(f"{target} is a file; name a folder")
    _check_place(target.resolve())


def check_nothing_else(folder: Path, replaces: Callable[[str], bool]) -> None:
    """Refuse to lose what a folder holds of another kind."""
    foreign = sorted(path.name for path in folder.iterdir() if path.is_dir() or not replaces(path.name))
    if foreign:
        raise UsageError(f"{folder} holds {foreign[0]!r}, which would be lost; name a new or an empty folder")


def _check_place(target: Path) -> None:
    """That something can be made beside it, or where the first of the folders would be made that lead there."""
    try:
        there = next(folder for folder in target.parents if folder.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UsageError(
            f"{target} cannot be written ({error.strerror or error}); make it writable, or name another place"
        ) from error


def remove_leftovers(target: Path) -> None:
    """Remove what writers of `target` that no longer live have left beside it."""
    aside = _aside(target)
    if aside.exists() and not target.exists():
        aside.rename(target)
    for path in target.parent.glob(f".{glob.escape(target.name)}.partial-*"):
        process = path.name.rpartition("-")[2]
        if process.isdigit() and int(process) != os.getpid() and _alive(int(process)):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _check_no_folder(target: Path) -> None:
    if target.exists() and not target.is_file():
        raise UsageError(
            f"{target} is a folder, a device or the like, which no file can take the place of; name another"
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make the folder, and hold it against other writers; where the file system knows no locks, go on without."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial-{os.getpid()}")


def _aside(target: Path) -> Path:
    """Where the old folder waits between two renames."""
    return target.with_name(f".{target.name}.old")


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _flush(path: Path) -> None:
    """Push a file or folder to the disk, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders in one step where the system can (Linux); elsewhere by two renames, quickly."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        swap = getattr(libc, "renameat2", None)
        if swap is not None:
            names = os.fsencode(new), os.fsencode(old)
            if swap(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
                return
    aside = _aside(old)
    shutil.rmtree(aside, ignore_errors=True)
    old.rename(aside)
    new.rename(old)
    shutil.rmtree(aside, ignore_errors=True)
