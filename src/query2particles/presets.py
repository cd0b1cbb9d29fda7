"""Configurations to start from, for each method: `default`, for a GPU; `small`, for a CPU and a small graph; others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from query2particles.config import Config, Training
from query2particles.errors import UsageError, clipped
from query2particles.methods import betae, cone, cqd, cqd_co, emql, gqe, links, q2b, q2p, tree
from query2particles.query.rewrite import Unions

__all__ = ["PRESETS", "preset"]

_EPFO = {"1p": 6.0, "2p": 1.5, "3p": 1.5, "2i": 1.0, "3i": 1.0}
"""The training mix of methods without complement."""

_SMALL = Training(
    batch=512,
    updates=1500,
    rate=1e-2,
    warm_up=100,
    decay=0.0,
    smoothing=0.0,
    validate_every=150,
    validation_queries=100,
)
"""For small graphs, on a CPU."""

_EPFO_TRAINING = Training(mix=_EPFO, unions="dnf", exclusion=0.0)

_MARGIN: dict[str, Any] = {
    "loss": "margin",
    "negatives": 128,
    "subsampling": True,
    "schedule": "constant",
    "smoothing": 0.0,
}
"""The loss of the papers that measure distances."""

_LINKS = Training(
    mix={"1p": 1.0},
    unions="dnf",
    batch=1024,
    updates=16000,
    rate=2e-3,
    warm_up=300,
    decay=0.0,
    smoothing=0.0,
    exclusion=0.0,
    validate_every=4000,
)
"""1-vs-all training of a link predictor, edge by edge."""

_SMALL_LINKS = replace(
    _LINKS, batch=512, updates=600, rate=1e-2, warm_up=50, validate_every=150, validation_queries=100
)


def _on_links(settings: Callable[..., Any], unions: Unions = "dnf") -> dict[str, tuple[Any, Training]]:
    """The presets of a link predictor, and of what answers on top of one."""
    return {
        "default": (settings(), replace(_LINKS, unions=unions)),
        "small": (settings(dimension=100, n3=0.1), replace(_SMALL_LINKS, unions=unions)),
    }


_AS_RELEASED = Training(
    rate=1e-3,
    schedule="constant",
    warm_up=1000,
    decay=0.0,
    smoothing=0.5,
    exclusion=0.0,
    edge_share=0.0,
    mix={
        **{"1p": 3.0, "2p": 1.5, "3p": 1.5, "2i": 1.0, "3i": 1.0},
        **{"2in": 0.1, "3in": 0.1, "inp": 0.1, "pin": 0.1, "pni": 0.1},
    },
)

_PRESETS: dict[str, dict[str, tuple[Any, Training]]] = {
    "q2p": {
        "default": (q2p.PRESETS["default"], Training(smoothing=0.0, union_share=0.25)),
        "small": (
            replace(
                q2p.PRESETS["default"],
                dimension=64,
                dropout=0.0,
                attention="separate",
                residual=True,
                projection="attention",
            ),
            _SMALL,
        ),
        "paper": (q2p.PRESETS["paper"], _AS_RELEASED),
        "released": (
            q2p.PRESETS["released"],
            replace(_AS_RELEASED, union_share=1 / 3, union_answers="first", inverted_complements=True, unions="dnf"),
        ),
    },
    "gqe": {
        "default": (gqe.Settings(), replace(_EPFO_TRAINING, decay=0.3)),
        "small": (
            gqe.Settings(dimension=64, dropout=0.3, entity_scale=0.1),
            replace(_SMALL, mix=_EPFO, unions="dnf", rate=3e-2),
        ),
        "paper": (
            gqe.Settings(projection="translation", residual=False, score="distance", bias=False, dropout=0.0),
            replace(_EPFO_TRAINING, **_MARGIN),
        ),
    },
    "q2b": {
        "default": (
            q2b.Settings(),
            replace(_EPFO_TRAINING, negatives=2048, rate=2e-3, smoothing=0.0, decay=0.0),
        ),
        "small": (
            q2b.Settings(dimension=32),
            replace(
                _SMALL,
                mix=_EPFO,
                unions="dnf",
                negatives=256,
                batch=256,
                rate=2e-2,
                updates=600,
                validate_every=100,
            ),
        ),
        "paper": (q2b.Settings(), replace(_EPFO_TRAINING, **_MARGIN)),
    },
    "betae": {
        "default": (betae.Settings(), Training(unions="dnf")),
        "small": (
            betae.Settings(dimension=64, hidden=256),
            replace(_SMALL, unions="dnf", updates=700, validate_every=100),
        ),
        "paper": (
            betae.Settings(positive="clamp", residual=False, dropout=0.0, entity_scale=0.09),
            Training(unions="dnf", batch=512, rate=1e-4, **_MARGIN),
        ),
    },
    "cone": {
        "default": (cone.Settings(), Training(unions="dnf", negatives=4096, rate=2e-3)),
        "small": (
            cone.Settings(dimension=32, hidden=128),
            replace(_SMALL, unions="dnf", negatives=512, batch=256, rate=2e-2, updates=600, validate_every=100),
        ),
        "paper": (
            cone.Settings(residual=False, aperture=3.14, modulus=1.1, margin=30.0),
            Training(unions="dnf", batch=512, rate=5e-5, **_MARGIN),
        ),
    },
    "links": _on_links(links.Settings),
    "cqd-beam": _on_links(cqd.Settings, "native"),
    "cqd-co": _on_links(cqd_co.Settings),
    "tree": {
        **_on_links(tree.Settings, "native"),
        "qto": (
            tree.Settings(
                least=0.0,
                certain=0.9999,
                sharpness=1.0,
                threshold=0.0002,
                neg_scale=3.0,
                negated_hops="edge",
            ),
            replace(_LINKS, unions="native"),
        ),
    },
    "emql": {
        "default": (
            emql.Settings(),
            Training(mix=_EPFO, batch=1024, rate=4e-3, warm_up=100, smoothing=0.0, decay=0.0, exclusion=0.0),
        ),
        "small": (
            emql.Settings(dimension=64, triples=200, depth=4, width=512),
            replace(_SMALL, mix=_EPFO, batch=256, updates=600),
        ),
    },
}
"""For each method, by name: its settings and those of its training."""

PRESETS: Mapping[str, Mapping[str, Config]] = MappingProxyType(
    {
        method: {
            name: Config(method=method, preset=name, model=model, training=training)
            for name, (model, training) in presets.items()
        }
        for method, presets in _PRESETS.items()
    }
)
"""For each method, configurations to start from."""


def preset(method: str = "q2p", name: str = "default") -> Config:
    if method not in PRESETS:
        raise UsageError(
            f"there is no method {clipped(repr(method))} to train by itself; there are {', '.join(PRESETS)}, and best, "
            "two of them joined (q2p train GRAPH --method best), which can be asked by fast and guided, too"
        )
    if name not in PRESETS[method]:
        raise UsageError(f"{method} has no preset {clipped(repr(name))}; it has {', '.join(PRESETS[method])}")
    return PRESETS[method][name]
