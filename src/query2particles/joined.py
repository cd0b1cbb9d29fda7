"""A joined run: a run of vectors and a run of links that answer together (`methods/joint`).

    joined.json          how it searches, the weights of each family, and what both were fitted to; where they are
                         those of another joined run (as), which one
    vectors/, links/     the two runs, each usable alone
    calibration.json     as in any run

`open_run` opens either kind of folder: what answers, evaluates or serves a run need not know which it is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain, filterfalse
from math import isfinite
from pathlib import Path
from typing import Any, cast

import torch

from query2particles import __version__
from query2particles.checkpoint import quoted
from query2particles.config import Config, Training, configured, key_of
from query2particles.errors import RunError, UsageError, WorkloadError, clipped
from query2particles.files import check_writable, new_file, write_json
from query2particles.graph.graph import Graph
from query2particles.joining import Effort, FamilyFit, Search, fit_search, fit_weights, seconds_per_search
from query2particles.methods.guided import Guide, Guided
from query2particles.methods.joint import FAMILIES, FEATURES, Joint
from query2particles.methods.links import Settings as LinkSettings
from query2particles.methods.registry import METHODS, Model
from query2particles.methods.tree import Tree
from query2particles.run import CALIBRATION, GRAPH, JOINED, RELIABILITY, Run
from query2particles.workload.labels import Labelled

__all__ = [
    "BEST",
    "FAST",
    "GUIDED",
    "PARTS",
    "Joined",
    "check_place",
    "join",
    "join_as",
    "open_joined",
    "open_run",
    "settings_of",
    "weighing",
]

BEST, FAST, GUIDED = "best", "fast", "guided"
"""What a joined run answers by: all parts; its vectors alone; a search that its vectors guide."""

PARTS = {"vectors": "q2p", "links": "links"}
"""The folder of each part, and the method that it usually is."""

_TREE = "tree"
_FORMAT = 3
_COPIED = ("trace.jsonl", CALIBRATION, "best.safetensors")


@dataclass(frozen=True, kw_only=True)
class Joined(Run):
    """The settings are those of the vectors, but for the name of the method."""

    vectors: Run
    links: Run
    weights: tuple[tuple[float, ...], ...]
    search: Search

    def answered_by(self, method: str, settings: Sequence[str] = ()) -> Run:
        """Itself; or a part alone, by the name of what answers with it."""
        if method == BEST:
            if not settings:
                return self
            if not all(map(_says_what_is_stored, settings)):
                raise UsageError(f"of {BEST} only stored can be set: --set changes a part, named by --method")
            return replace(self, config=self._storing(settings))
        if method == GUIDED:
            own = {name: getattr(self, name) for name in Joined.__dataclass_fields__}
            config = replace(self._storing(filter(_says_what_is_stored, settings)), method=GUIDED)
            return GuidedRun(**{**own, "config": config}, guide=_guide(filterfalse(_says_what_is_stored, settings)))
        if method in (FAST, self.vectors.config.method):
            return self.vectors.answered_by(self.vectors.config.method, settings)
        return self.links.answered_by(method, [*(self.search.settings if method == _TREE else ()), *settings])

    def _storing(self, settings: Iterable[str]) -> Config:
        """Its own settings, with what these say is stored when questions are asked."""
        stored = configured(self.vectors.config, None, list(settings)).training.stored
        return replace(self.config, training=replace(self.config.training, stored=stored))

    def model(self, graph: Graph, device: torch.device | str = "cpu") -> Model:
        weights = torch.tensor(self.weights)
        found = _joint(self.vectors, self.links, graph, weights, self.config.training, self.search)
        return cast(Model, found.to(device))

    @property
    def weight_files(self) -> tuple[Path, ...]:
        return (*self.vectors.weight_files, *self.links.weight_files, self.folder / JOINED)

    def cost(self) -> tuple[float, float]:
        """Of both parts: their seconds together, and the GiB of the larger."""
        seconds, memory = zip(self.vectors.cost(), self.links.cost(), strict=True)
        return sum(seconds), max(memory)


@dataclass(frozen=True, kw_only=True)
class GuidedRun(Joined):
    """The same parts, as a search that the vectors guide (`methods/guided`)."""

    guide: Guide

    def model(self, graph: Graph, device: torch.device | str = "cpu") -> Model:
        training = self.config.training
        tree = _tree(self.links, graph, training.stored, self.search)
        found = Guided(self.vectors.model(graph), tree, graph.at(training.known), self.guide)
        return cast(Model, found.eval().to(device))


def _says_what_is_stored(setting: str) -> bool:
    return setting.partition("=")[0].strip() == "stored"


def _guide(settings: Iterable[str]) -> Guide:
    """From settings such as proposals=16."""
    found = {}
    known = {field.name for field in fields(Guide)}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in known:
            raise UsageError(f"{GUIDED} has no setting {clipped(repr(key))}; it has {', '.join(sorted(known))}")
        may_be_none = key in ("sample", "tails")
        if not value.isdecimal() or (not may_be_none and int(value) == 0):
            raise UsageError(f"{key} is a whole number{'' if may_be_none else ' above 0'}, not {clipped(value)}")
        found[key] = int(value)
    return Guide(**found)


def open_run(folder: Path, wanted: str | None = None) -> Run:
    """A run folder of either kind; `wanted` as of `Run.open`."""
    path = folder / JOINED
    if not path.is_file():
        return Run.open(folder, wanted)
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["format"] != _FORMAT:
            raise RunError(f"{path} is in format {quoted(document['format'])}, this version reads {_FORMAT}; join anew")
        weights = tuple(tuple(map(float, row)) for row in document["weights"])
        settled = document["search"]
        search = Search(
            float(settled["sharpness"]),
            settled["several"],
            float(settled["walks"]),
            float(settled.get("neg_scale", 1.0)),  # which earlier versions did not have
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RunError(f"{path} cannot be read ({quoted(error)}); restore it, or join the parts again") from error
    if [len(row) for row in weights] != [len(FEATURES)] * FAMILIES or not all(map(isfinite, chain(*weights))):
        raise RunError(f"{path} does not have {FAMILIES} rows of {len(FEATURES)} finite weights; join the parts again")
    for name, method in PARTS.items():
        if not (folder / name).is_dir():
            raise RunError(
                f"{folder} is a joined run without its part {name}: restore that, or join anew (q2p join), with a run "
                f"of q2p train GRAPH --method {method}"
            )
    vectors, links = (Run.open(folder / name, method) for name, method in PARTS.items())
    _check_links(links)
    try:
        links.answered_by(_TREE, search.settings)
    except UsageError as error:
        raise RunError(f"{path} cannot be read ({quoted(error)}); restore it, or join the parts again") from error
    return _joined(folder, vectors, links, weights, search)


def open_joined(folder: Path) -> Joined:
    """A joined run, and nothing else."""
    run = open_run(folder, BEST)
    if not isinstance(run, Joined):
        raise UsageError(f"{folder} is no joined run: q2p train GRAPH --method {BEST}, or q2p join, makes one")
    return run


def join(
    folder: Path,
    vectors: Run,
    links: Run,
    graph: Graph,
    validation: Labelled | None,
    *,
    device: torch.device | str = "cpu",
    seconds: float | None = None,
    effort: Effort | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[Joined, dict[int, FamilyFit]]:
    """Fit two runs of one graph to validation queries, and write the joined run.

    How many queries are asked says `effort`; or the `seconds` that it may take; or else the device and the graph. Parts
    that are not in the folder already are copied there. The file that makes it a joined run comes last.
    """
    check_place(folder, vectors.folder, links.folder)
    _check_held_out(vectors, links)
    _check_parts(vectors, links, graph)
    validation = weighing(validation, graph)
    nothing = torch.zeros(FAMILIES, len(FEATURES))
    unweighted = _joint(vectors, links, graph, nothing, vectors.config.training).to(device)
    if effort is None:
        if seconds is None:
            effort = Effort.on(device, len(graph.entities))
        else:
            effort = Effort.within(seconds / seconds_per_search(unweighted.tree, *validation))
    search, searches = fit_search(unweighted.tree, *validation, effort, progress=progress)
    weights, fits = fit_weights(unweighted, *validation, effort, progress=progress)
    rows = tuple(map(tuple, weights.tolist()))
    document = {
        "format": _FORMAT,
        "version": __version__,
        "search": search._asdict(),
        "searches": [{**tried._asdict(), "mrr": 100 * mrr} for tried, mrr in searches.items()],
        "features": FEATURES,
        "weights": rows,
        "families": {str(family): asdict(fit) for family, fit in fits.items()},
    }
    return _written(folder, vectors, links, rows, search, document), fits


def join_as(folder: Path, vectors: Run, links: Run, graph: Graph, like: Joined) -> Joined:
    """Join two runs of one graph with the search and the weights of a joined run: nothing is fitted.

    For parts that were trained again, on more facts, of which none may be left to weigh them by.
    """
    if folder.resolve() == like.folder.resolve():
        raise UsageError(f"{folder} is where the weights come from: name a new folder (--out)")
    check_place(folder, vectors.folder, links.folder)
    like.check(graph)
    _check_parts(vectors, links, graph)
    for run, before in ((vectors, like.vectors), (links, like.links)):
        if run.config.method != before.config.method:
            raise UsageError(
                f"{run.folder} is a run of {run.config.method}, and {like.folder} was weighed with one of "
                f"{before.config.method}; join runs of the same methods, or leave out --as"
            )
    ours, theirs = vectors.config.training.split, links.config.training.split
    if ours != theirs:
        raise UsageError(
            f"{vectors.folder} was trained on the facts of {ours}, {links.folder} on those of {theirs}; train both on "
            "the same"
        )
    weights = torch.tensor(like.weights)
    _joint(vectors, links, graph, weights, vectors.config.training, like.search)  # which says what is wrong
    document = json.loads((like.folder / JOINED).read_text("utf-8"))
    document |= {"version": __version__, "as": str(like.folder.resolve())}
    return _written(folder, vectors, links, like.weights, like.search, document)


def _written(
    folder: Path,
    vectors: Run,
    links: Run,
    weights: tuple[tuple[float, ...], ...],
    search: Search,
    document: Mapping[str, Any],
) -> Joined:
    (folder / JOINED).unlink(missing_ok=True)  # of an earlier join, whose weights are not those of new parts
    vectors, links = (_placed(run, folder / name) for name, run in zip(PARTS, (vectors, links), strict=True))
    write_json(folder / JOINED, document)
    return _joined(folder, vectors, links, weights, search)


def weighing(validation: Labelled | None, graph: Graph) -> Labelled:
    """The queries that parts are weighed by, of which there must be some."""
    if validation is None:
        raise WorkloadError(
            f"{graph.name} has no validation facts to weigh the parts by; import it with some held out "
            "(q2p graph import --split), or train one method alone (--method q2p)"
        )
    return validation


def check_place(folder: Path, *parts: Path) -> None:
    """Refuse a folder that has anything but a joined run, or trainings of other parts than these."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a new folder (--out)")
    check_writable(folder / JOINED)
    known = {*PARTS, JOINED, CALIBRATION, RELIABILITY, GRAPH}
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names - known:
        raise UsageError(f"{folder} is not empty: name a new folder (--out)")
    own = {part.resolve() for part in parts}
    for name in PARTS:
        place = folder / name
        if place.resolve() not in own and Run.was_trained_in(place):
            raise UsageError(f"{place} was trained where it is, and would be lost: name a new folder (--out)")


def settings_of(part: str, settings: Sequence[str]) -> list[str]:
    """The settings of one part: those that name it, with a dot, and those without a name which it has, or no part."""
    found = []
    known = {name: _names_of_settings(method) for name, method in PARTS.items()}
    for setting in settings:
        key = key_of(setting)
        name, dot, _ = key.partition(".")
        if dot and name not in PARTS:
            raise UsageError(f"{key} names no part: settings of one begin with {' or '.join(f'{n}.' for n in PARTS)}")
        if name == part if dot else key in known[part] or not any(key in others for others in known.values()):
            found.append(setting.strip().removeprefix(f"{part}."))
    return found


def _names_of_settings(method: str) -> set[str]:
    return {field.name for kind in (METHODS[method].settings(), Training()) for field in fields(kind)}


def _check_held_out(*parts: Run) -> None:
    """Refuse parts that were trained on what would weigh them."""
    for run in parts:
        training = run.config.training
        if not training.can_be_judged:
            what = "validation queries with their answers" if training.holds_out else training.facts
            raise UsageError(
                f"{run.folder} was trained on {what}: nothing is left to weigh it by; take the weights of a joined run "
                "(q2p join --as)"
            )


def _check_parts(vectors: Run, links: Run, graph: Graph) -> None:
    for run in (vectors, links):
        run.check_facts(graph)
    if METHODS[vectors.config.method].trains_another or vectors.config.method == "links":
        raise UsageError(f"{vectors.folder} has no vectors of queries, it is a run of links; name the other one first")
    _check_links(links)


def _check_links(run: Run) -> None:
    if not isinstance(run.config.model, LinkSettings):
        raise UsageError(
            f"{run.folder} is no run of links, but of {run.config.method}: train one (q2p train GRAPH --method links "
            "--out LINKS), and join that"
        )


def _joined(folder: Path, vectors: Run, links: Run, weights: tuple[tuple[float, ...], ...], search: Search) -> Joined:
    own: Mapping[str, Any] = {name: getattr(vectors, name) for name in Run.__dataclass_fields__}
    training = replace(vectors.config.training, unions=METHODS[vectors.config.method].unions[0])
    config = replace(vectors.config, method=BEST, training=training)
    own = {**own, "folder": folder, "config": config}
    return Joined(**own, vectors=vectors, links=links, weights=weights, search=search)


def _joint(
    vectors: Run,
    links: Run,
    graph: Graph,
    weights: torch.Tensor,
    training: Training,
    search: Search | None = None,
) -> Joint:
    """On the CPU; `training` says what is stored."""
    tree = _tree(links, graph, training.stored, search)
    return Joint(vectors.model(graph), tree, graph.at(training.known), weights).eval()


def _tree(links: Run, graph: Graph, stored: str, search: Search | None) -> Tree:
    settings = [] if search is None else search.settings
    tree = links.answered_by(_TREE, [*settings, f"stored={stored}"]).model(graph)
    assert isinstance(tree, Tree)
    return tree


def _placed(run: Run, folder: Path) -> Run:
    """The run in this folder: there already, or a copy of what answering needs."""
    if run.folder.resolve() != folder.resolve():
        folder.mkdir(parents=True, exist_ok=True)
        for name in _COPIED:
            if (run.folder / name).is_file():
                with new_file(folder / name) as partial:
                    shutil.copyfile(run.folder / name, partial)
        return replace(run, folder=folder).with_config(run.config)  # which says from there where the graph is
    return replace(run, folder=folder)
