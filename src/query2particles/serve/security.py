"""Who may ask: keys, host names, origins, and the headers that keep a browser on the safe side."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from query2particles.errors import UsageError

__all__ = [
    "KEYS_VARIABLE",
    "LOOPBACK_NAMES",
    "SECURITY_HEADERS",
    "Access",
    "Keys",
    "check_binding",
    "content_policy",
    "is_loopback",
]

KEYS_VARIABLE = "Q2P_API_KEYS"
"""The environment variable of keys, separated by commas or spaces."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

_SHORTEST_KEY = 16
_EVERY_HOST = "*"
_KEY = re.compile(r"[!-~]+")
_PORT = re.compile(r":\d{1,5}$")


def content_policy(*, style: str = "'self'") -> str:
    """What a page of ours may load: nothing from elsewhere."""
    parts = {
        "default-src": "'self'",
        "style-src": style,
        "img-src": "'self' data:",
        "object-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": content_policy(),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""In every answer, unless it says otherwise."""


@dataclass(frozen=True)
class Keys:
    """The keys that open the server, as digests; without any, it is open."""

    digests: tuple[bytes, ...] = ()

    @staticmethod
    def of(keys: Iterable[str]) -> Keys:
        found = list(dict.fromkeys(keys))
        for key in found:
            if len(key) < _SHORTEST_KEY or not _KEY.fullmatch(key):
                raise UsageError(
                    f"a key has at least {_SHORTEST_KEY} characters, all of them printable ASCII without spaces: "
                    "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes a good one"
                )
        return Keys(tuple(map(_digest, found)))

    @staticmethod
    def read(file: Path | None, variable: str | None) -> Keys:
        """The keys of a file (one a line, `#` for remarks) and of the environment."""
        keys = re.split(r"[\s,]+", variable.strip(" ,\n\t")) if variable and variable.strip(" ,\n\t") else []
        if file is not None:
            try:
                lines = file.read_text("utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"the file of keys {file} cannot be read: {error}") from None
            of_file = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
            if not of_file:
                raise UsageError(f"the file of keys {file} holds none: write one a line")
            keys += of_file
        return Keys.of(keys)

    def __bool__(self) -> bool:
        return bool(self.digests)

    def open(self, given: bytes | None) -> bool:
        """Whether `given` is one of the keys; it takes as long for each, so that time tells nothing."""
        digest = hashlib.sha256(given or b"").digest()
        matches = [hmac.compare_digest(digest, own) for own in self.digests]
        return any(matches) or not self.digests


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


@dataclass(frozen=True)
class Access:
    """The keys, the names that the server answers to, and the origins whose pages may ask it."""

    keys: Keys
    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()

    @staticmethod
    def of(keys: Keys, bound: str, hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> Access:
        names = {*LOOPBACK_NAMES, bound, *hosts}
        return Access(keys, frozenset(name.lower().strip("[]") for name in names), frozenset(origins))

    def answers_for(self, host: str) -> bool:
        """Whether a Host header names this server; a page of elsewhere that resolves to it would name another."""
        if _EVERY_HOST in self.hosts:
            return True
        return _PORT.sub("", host).lower().strip("[]") in self.hosts


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_binding(host: str, keys: Keys, *, insecure: bool) -> None:
    """Refuse to open the server to others without a key."""
    if not (is_loopback(host) or keys or insecure):
        raise UsageError(
            f"listening on {host} opens the server to other machines: set keys in {KEYS_VARIABLE} or --key-file, or "
            "say --insecure if everybody who can reach it may use it"
        )
