"""What a browser sees: the built page, a stand-in where it has not been built, and the list of endpoints."""

from __future__ import annotations

import base64
import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from query2particles.serve.security import content_policy

__all__ = ["STATIC", "Asset", "docs_page", "page_assets"]

STATIC = Path(__file__).parent / "static"
"""Where the build of the page lands."""

_INDEX = "index.html"
_FOR_EVER = "public, max-age=31536000, immutable"
_EVERY_TIME = "no-cache"
_SHRINKS = ("text/", "application/javascript", "application/json", "image/svg+xml")
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
    ".ico": "image/x-icon",
    ".png": "image/png",
    ".txt": "text/plain",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page as it is sent, whole or compressed."""

    body: bytes
    compressed: bytes | None
    headers: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(body: bytes, media_type: str, *, cache: str = _EVERY_TIME, policy: str | None = None) -> Asset:
        is_text = media_type.startswith(_SHRINKS)
        headers = {
            "Content-Type": f"{media_type}; charset=utf-8" if is_text else media_type,
            "Cache-Control": cache,
            "ETag": f'"{hashlib.sha256(body).hexdigest()[:20]}"',
            **({"Vary": "Accept-Encoding"} if is_text else {}),
            **({"Content-Security-Policy": policy} if policy else {}),
        }
        return Asset(body, gzip.compress(body, mtime=0) if is_text else None, headers)


def page_assets(folder: Path = STATIC) -> dict[str, Asset]:
    """Every file of the built page by its path; where there is none, a page that says how to get it.

    They are read once: no path that a client sends ever reaches the file system.
    """
    if not (folder / _INDEX).is_file():
        return {"/": _own_page("query2particles", _NOT_BUILT)}
    assets = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        media_type = _TYPES.get(file.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        # Names of assets carry a hash of their content, so that a new build has new names.
        assets[f"/{name}"] = Asset.of(
            file.read_bytes(), media_type, cache=_FOR_EVER if name.startswith("assets/") else _EVERY_TIME
        )
    return {"/": assets[f"/{_INDEX}"], **assets}


def docs_page(openapi: Mapping[str, Any]) -> Asset:
    """The endpoints for people, from the same description that programs read; it loads nothing from elsewhere."""
    schemas = openapi.get("components", {}).get("schemas", {})
    parts = [f"<h1>{escape(openapi['info']['title'])}</h1><p>{escape(openapi['info'].get('description', ''))}</p>"]
    parts.append('<p>For programs: <a href="openapi.json">openapi.json</a></p>')
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p>")
            parts.append(_fields("Parameters", {one["name"]: one["schema"] for one in operation.get("parameters", [])}))
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            parts.append(_fields("Body", schemas.get(_target(body), {}).get("properties", {})))
            answers = [
                f"<code>{status}</code> {escape(one['description'])}" for status, one in operation["responses"].items()
            ]
            parts.append(f"<p class=answers>{'; '.join(answers)}</p>")
    parts.append("<h2>Forms of JSON</h2>")
    parts += [_fields(name, schema.get("properties", {})) for name, schema in schemas.items()]
    return _own_page("query2particles: endpoints", "".join(parts))


def _fields(title: str, properties: Mapping[str, Any]) -> str:
    if not properties:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{escape(_in_words(one))}<td>{escape(one.get('description', ''))}"
        for name, one in properties.items()
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


def _in_words(schema: Mapping[str, Any]) -> str:
    """A JSON schema in a few words."""
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(map(_in_words, several))
    if "$ref" in schema:
        return _target(schema)
    if "enum" in schema or "const" in schema:
        return " | ".join(map(str, schema.get("enum", [schema.get("const")])))
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        kind = f"list of {_in_words(schema.get('items', {}))}"
    names = {"minimum": "from", "maximum": "to", "minLength": "from", "maxLength": "to", "maxItems": "at most"}
    bounds = [f"{word} {schema[name]:,}" for name, word in names.items() if name in schema]
    default = [f"default {schema['default']!r}"] if schema.get("default") not in (None, "") else []
    return ", ".join([kind, *bounds, *default])


def _target(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; font-size: 1.1rem }
code { font-family: ui-monospace, monospace }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
caption { text-align: left; font-weight: 600; padding: .5rem 0 }
td { border-top: 1px solid #8884; padding: .25rem .75rem .25rem 0; vertical-align: top }
.answers { font-size: .9rem }
"""

_NOT_BUILT = """
<h1>The server is running, its page has not been built</h1>
<p>The page is written in TypeScript and built with Node. In a source checkout:</p>
<p><code>make page</code>, or by hand <code>cd web &amp;&amp; npm ci &amp;&amp; npm run build</code>, and start the
server again.</p>
<p>Released packages contain the page. Without it everything else works: see the
<a href="docs">list of endpoints</a>.</p>
"""


def _own_page(title: str, content: str) -> Asset:
    html = (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><main>{content}</main></html>"
    )
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    return Asset.of(html.encode(), "text/html", policy=content_policy(style=f"'sha256-{digest}'"))
