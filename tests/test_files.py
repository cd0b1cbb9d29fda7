"""Files are written beside their place and renamed into it; nothing foreign is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from query2particles import files
from query2particles.errors import UsageError
from query2particles.files import check_replaceable, check_writable, new_file, new_folder


def ours(name: str) -> bool:
    return name.endswith(".part")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    with new_file(target) as partial:
        partial.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    with contextlib.suppress(RuntimeError), new_file(target) as partial:
        partial.write_text("broken")
        raise RuntimeError
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_whether_a_file_could_be_written_is_asked_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    for target in (tmp_path / "file", tmp_path / "new", tmp_path / "deep" / "er" / "new"):
        check_writable(target)
    for target in (tmp_path / "file" / "new", Path("/proc/nowhere/new")):
        with pytest.raises(UsageError, match=r"new cannot be written \(.*; make it writable, or name another place"):
            check_writable(target)
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_whether_a_folder_could_be_made_is_asked_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "folder", tmp_path / "new", tmp_path / "deep" / "er" / "new"):
        check_replaceable(target, ours)
    for target in (tmp_path / "file" / "new", Path("/proc/nowhere/new")):
        with pytest.raises(UsageError, match=r"new cannot be written \(.*; make it writable, or name another place"):
            check_replaceable(target, ours)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("swap", [True, False])
def test_a_folder_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: bool) -> None:
    if not swap:
        monkeypatch.setattr("sys.platform", "elsewhere")
    target = tmp_path / "folder"
    for content in ("one", "two"):
        with new_folder(target, replaces=ours) as partial:
            (partial / f"{content}.part").write_text(content)
        assert [path.name for path in target.iterdir()] == [f"{content}.part"]
    with pytest.raises(RuntimeError), new_folder(target, replaces=ours):
        raise RuntimeError
    assert [path.name for path in target.iterdir()] == ["two.part"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_foreign_files_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("years of work")
    with pytest.raises(UsageError, match=r"thesis\.doc"), new_folder(tmp_path, replaces=ours):
        pass
    (tmp_path / "thesis.doc").rename(tmp_path / "thesis.part")
    (tmp_path / "sub").mkdir()
    with pytest.raises(UsageError, match="sub"), new_folder(tmp_path, replaces=ours):
        pass
    with pytest.raises(UsageError, match="is a file"), new_folder(tmp_path / "thesis.part", replaces=ours):
        pass
    assert (tmp_path / "thesis.part").read_text() == "years of work"


def test_leftovers_of_dead_writers_go_and_of_living_ones_stay(tmp_path: Path) -> None:
    dead, living = tmp_path / ".file.partial-999999999", tmp_path / f".file.partial-{os.getppid()}"
    dead.mkdir()
    living.write_text("busy")
    with new_file(tmp_path / "file") as partial:
        partial.write_text("")
    assert not dead.exists()
    assert living.exists()


def test_a_folder_put_aside_comes_back(tmp_path: Path) -> None:
    (tmp_path / ".folder.old").mkdir()
    (tmp_path / ".folder.old" / "kept.part").write_text("old")
    files.remove_leftovers(tmp_path / "folder")
    assert (tmp_path / "folder" / "kept.part").read_text() == "old"


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    disk, link = tmp_path / "disk", tmp_path / "link"
    disk.mkdir()
    (disk / "old.part").write_text("old")
    link.symlink_to(disk)
    with new_folder(link, replaces=ours) as partial:
        (partial / "new.part").write_text("new")
    assert link.is_symlink()
    assert [path.name for path in disk.iterdir()] == ["new.part"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]
    file = tmp_path / "file"
    file.symlink_to(disk / "new.part")
    with new_file(file) as partial:
        partial.write_text("newer")
    assert file.is_symlink()
    assert (disk / "new.part").read_text() == "newer"


def test_odd_names_leave_nothing_behind(tmp_path: Path) -> None:
    leftover = tmp_path / ".g[1].partial-999999999"
    leftover.mkdir()
    with new_folder(tmp_path / "g[1]", replaces=ours):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["g[1]"]


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    """Each adds its file to what the folder holds; none is lost."""

    def add(number: int) -> None:
        with new_folder(tmp_path / "folder", replaces=ours) as partial:
            for path in (tmp_path / "folder").glob("*.part"):
                shutil.copy(path, partial)
            (partial / f"{number}.part").write_text("")

    (tmp_path / "folder").mkdir()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert len(list((tmp_path / "folder").iterdir())) == 24


def test_a_file_takes_the_place_of_nothing_but_a_file(tmp_path: Path) -> None:
    """Renaming over a device or a pipe would do away with it."""
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for target in (pipe, folder):
        with pytest.raises(UsageError, match="name another"), new_file(target):
            pass
    assert pipe.is_fifo()
    assert folder.is_dir()
    assert sorted(tmp_path.iterdir()) == [folder, pipe]
