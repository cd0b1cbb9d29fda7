"""What is released contains the built page."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from query2particles.serve.pages import STATIC

_ROOT = Path(__file__).parents[2]


def test_wheel_and_sdist_contain_the_page(tmp_path: Path) -> None:
    pytest.importorskip("build", reason="pip install build")
    if not (STATIC / "index.html").is_file():
        pytest.skip("the page is not built: make page")
    # The wheel is built from the sdist, so what it has, both have.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(_ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    prefix = "query2particles/serve/static/"
    packed = {name.removeprefix(prefix) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(prefix)}
    assert packed == {file.relative_to(STATIC).as_posix() for file in STATIC.rglob("*") if file.is_file()}
    assert {"index.html", "icon.svg", "licences.txt"} < packed
