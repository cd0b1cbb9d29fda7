"""The built page as it is sent, and what stands in for it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from pathlib import Path

from query2particles.serve.pages import page_assets


def test_a_built_page(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<title>page</title>")
    (tmp_path / "assets" / "index-abc.js").write_text("let a = 1;" * 100)
    (tmp_path / "assets" / "font.woff2").write_bytes(b"\0\1")
    assets = page_assets(tmp_path)
    assert set(assets) == {"/", "/index.html", "/assets/index-abc.js", "/assets/font.woff2"}
    script, page = assets["/assets/index-abc.js"], assets["/"]
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert "immutable" in script.headers["Cache-Control"]
    assert script.compressed is not None
    assert gzip.decompress(script.compressed) == script.body
    assert page.headers["Cache-Control"] == "no-cache"
    assert assets["/assets/font.woff2"].headers["Content-Type"] == "font/woff2"
    assert assets["/assets/font.woff2"].compressed is None


def test_without_a_build_there_is_a_page_that_says_so(tmp_path: Path) -> None:
    (asset,) = page_assets(tmp_path).values()
    text = asset.body.decode()
    assert "make page" in text
    assert 'href="docs"' in text
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in asset.headers["Content-Security-Policy"]
