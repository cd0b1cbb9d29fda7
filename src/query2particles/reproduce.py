"""Results by name:  recipe ▶ a run folder for each seed ▶ evaluation of the test sets ▶ NAME.json.

Runs are kept and used again: a finished one is only evaluated, an unfinished one goes on where it was saved. Every
seed's figures are written as soon as they are there, so whatever ends a call, the next one with the same names goes on.
Names that share a recipe share its runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from query2particles.calibration import weights_digest
from query2particles.config import Config, answered_by, configured
from query2particles.errors import RunError, UsageError
from query2particles.evaluate import Evaluation, evaluate, result
from query2particles.experiments.published import (
    columns_of,
    figure_printed,
    figures_of,
    knows_validation,
    leaked_into,
    printed,
    set_of,
)
from query2particles.experiments.recipes import Experiment, Recipe, experiment
from query2particles.files import write_json
from query2particles.graph.edges import Ints
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph
from query2particles.joined import BEST, PARTS, Joined, join, join_as, open_run, settings_of
from query2particles.provenance import commit, machine
from query2particles.query.algebra import Query
from query2particles.run import Run, is_run_folder
from query2particles.train import Progress, train, validation_set
from query2particles.workload.hardness import hardness
from query2particles.workload.labels import Labelled
from query2particles.workload.selection import stored_queries

__all__ = ["Comparison", "Reproduced", "Watch", "compared", "reproduce"]

_TRAINED = "trained.json"
"""In a run folder: what trained it. A run that has it is finished."""

_OFFICIAL = Path("benchmarks/results")

_NOT_TO_SET = {
    "seed": "name seeds with --seeds",
    "validation": "the recipe says which queries select the weights",
    "leaked": "a recipe of its own does that (q2p reproduce --list)",
}

_CAVEATS = {
    ("betae-resampled", None): "The queries were drawn anew by the published procedure: a few tenths say nothing.",
    ("q2b", "q2p"): "The published row cannot be taken for a clean result, and its Hit@3 may count a query by its "
    "best hard answer (best_hits@3) where ours is the mean over all of them: see docs/evaluation.md.",
}
"""By query set, and method where it is not for all."""


@dataclass(frozen=True)
class Watch:
    """Who hears what goes on: in words, and how far training (by updates) and evaluation (by queries) are."""

    say: Callable[[str], object] = lambda _: None
    training: Callable[[int], AbstractContextManager[Callable[[Progress], object]]] = lambda _: nullcontext(_nothing)
    evaluation: Callable[[str, int], AbstractContextManager[Callable[[int], object]]] = lambda *_: nullcontext(_nothing)


def _nothing(_: object) -> None:
    pass


@dataclass(frozen=True)
class Reproduced:
    """The results that are there; with the signal that ended the work early, those of the seeds so far."""

    documents: tuple[dict[str, Any], ...]
    signal: int | None = None


@dataclass(frozen=True)
class _Training:
    """What a finished run was trained by; what that cost is in the run's trace."""

    machine: str
    commit: str | None


def reproduce(
    names: Sequence[str],
    *,
    data: Path | None,
    out: Path = _OFFICIAL,
    runs: Path = Path("runs"),
    seeds: Sequence[int] = (0, 1, 2),
    device: torch.device | str = "cpu",
    settings: Sequence[str] = (),
    leaking: bool = False,
    watch: Watch | None = None,
) -> Reproduced:
    """Make the results of these names; each is in `out` as NAME.json.

    One that is trained on test queries is only made where that is meant (`leaking`).

    A result of other settings than the recipe's is none that belongs into benchmarks/results, and no seed that a file
    has is lost: only more of the same, or other settings, replace it.
    """
    wanted = [experiment(name) for name in dict.fromkeys(names)]
    if leaks := [one.name for one in wanted if one.recipe.config.training.leaked and not leaking]:
        raise UsageError(
            f"{', '.join(leaks)} trains on the test queries with their answers, to measure what that is worth; "
            "say --leaking if that is meant"
        )
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UsageError("name each seed once, at least one: --seeds 0,1,2")
    if data is None:
        raise UsageError("name the folder of the benchmark graphs: --data DIR, or set Q2P_DATA")
    _check_settings(settings, out)
    for one in wanted:
        _check_folders(one, data)
    here = commit()  # now: what is loaded stays, what lies in the checkout may change
    planned: list[tuple[_Series, list[Experiment]]] = []
    for recipe in dict.fromkeys(one.recipe.name for one in wanted):
        sharing = [one for one in wanted if one.recipe.name == recipe]
        trains = any(one.config == one.recipe.config for one in sharing)
        own = settings if trains else ()  # else they change how is asked, not what is trained
        about = sharing[0].recipe
        kind = _RetrainedSeries if about.weights_of else _JoinedSeries if about.parts else _Series
        series = kind(about, data, runs, torch.device(device), own, watch or Watch(), here)
        for one in sharing:
            if not trains:
                _check_answering(one, settings)
            series.ask(one, settings)
            if lost := series.lost_seeds(one, out / f"{one.name}.json", seeds):
                raise UsageError(
                    f"{out / one.name}.json has seeds {', '.join(map(str, lost))} of the same settings, which would be "
                    f"lost; make all of them (--seeds {','.join(map(str, [*seeds, *lost]))}), or name another --out"
                )
        planned.append((series, sharing))
    documents: dict[str, dict[str, Any]] = {}
    for series, sharing in planned:
        found: dict[str, list[Evaluation]] = {one.name: [] for one in sharing}
        trained: list[tuple[Run, _Training]] = []
        for number, seed in enumerate(seeds, start=1):
            run, training = series.trained(seed)
            if not isinstance(training, _Training):
                return Reproduced(tuple(documents.values()), training)
            trained.append((run, training))
            for one in sharing:
                found[one.name].append(series.evaluated(run, one))
                path = out / f"{one.name}.json"
                if not series.lost_seeds(one, path, seeds[:number]):  # a file with more waits until all are there again
                    documents[one.name] = series.document(one, found[one.name], seeds[:number], trained)
                    write_json(path, documents[one.name])
    return Reproduced(tuple(documents[one.name] for one in wanted))


def _check_settings(settings: Sequence[str], out: Path) -> None:
    for setting in settings:
        key = setting.partition("=")[0].strip()
        name = key.rpartition(".")[2].replace("-", "_")
        if name in _NOT_TO_SET:
            raise UsageError(f"{key} cannot be set here: {_NOT_TO_SET[name]}")
    if settings and out.resolve().parts[-2:] == _OFFICIAL.parts:
        raise UsageError(
            f"{_OFFICIAL} is for the recipes as they are, and --set changes them; name another folder: --out DIR"
        )


def _check_answering(one: Experiment, settings: Sequence[str]) -> None:
    """Refuse what changes the training of a name that only asks what another name trains."""
    own = settings_of("vectors", settings) if one.recipe.parts else settings
    if len(own) < len(settings):
        raise UsageError(f"{one.name} only asks what is trained for {one.recipe.name}: leave out settings of its links")
    answered_by(one.config, one.config.method, own)


def _check_folders(one: Experiment, data: Path) -> None:
    """Before any work: what it needs is there."""
    selecting = (recipe.validation for recipe in (one.recipe, *one.recipe.parts))
    for folder in ("", *selecting, one.queries):
        if not (data / one.recipe.graph / folder).is_dir():
            raise UsageError(
                f"{one.name} needs {Path(one.recipe.graph, folder)}, which {data} does not have; "
                "name the folder of the benchmark graphs (--data, or Q2P_DATA)"
            )


class _Series:
    """The runs of one recipe, one for each seed."""

    def __init__(
        self,
        recipe: Recipe,
        data: Path,
        runs: Path,
        device: torch.device,
        settings: Sequence[str],
        watch: Watch,
        here: str | None,
    ) -> None:
        self._recipe, self._runs, self._device, self._watch, self._commit = recipe, runs, device, watch, here
        self._folder = data / recipe.graph
        places = [f"validation={(self._folder / recipe.validation).resolve()}"]
        if recipe.config.training.leaked:
            places.append(f"leaked={(self._folder / recipe.config.training.leaked).resolve()}")
        self._config = configured(recipe.config, None, [*settings, *places])
        if self._config.training.all_edges:
            raise UsageError("all_edges trains on the test facts: what is measured then is no result")
        self._graph: Graph = open_graph(self._folder)
        self._validation: Labelled | None = None
        self._queries: dict[str, tuple[Labelled, Mapping[Query, Ints]]] = {}
        self._asked: dict[str, Config] = {}

    def ask(self, one: Experiment, settings: Sequence[str]) -> None:
        """Take note of how an experiment is asked: as the recipe trains, or with a configuration of its own."""
        derived = one.config != one.recipe.config
        validation = f"validation={self._config.training.validation}"
        self._asked[one.name] = configured(one.config, None, [*settings, validation]) if derived else self._config

    def lost_seeds(self, one: Experiment, path: Path, seeds: Sequence[int]) -> list[int]:
        """Those that a result file of the same settings has, and one of these seeds in its place would not have."""
        try:
            document = json.loads(path.read_text("utf-8"))
            same = self._is_ours(one, document["config"])
            return [seed for seed in document["seeds"] if seed not in seeds] if same else []
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError):
            return []  # there is none, or none that can be read

    def _is_ours(self, one: Experiment, config: Mapping[str, Any]) -> bool:
        """Whether the settings of a result file are those of this experiment."""
        return Config.from_json(config) == _portable(self._asked[one.name]).with_bare_names()

    def trained(self, seed: int) -> tuple[Run, _Training | int]:
        """The run of a seed, and what trained it; where training ended early, the signal that ended it."""
        run = self._run(seed)
        record = run.folder / _TRAINED
        if record.is_file():
            try:
                return run, _Training(**json.loads(record.read_text("utf-8")))
            except (ValueError, TypeError) as error:
                raise RunError(f"{record} cannot be read; remove it, and call again: the run is looked at") from error
        signal = self._train(run, seed)
        if signal is not None:
            return run, signal
        training = _Training(machine(self._device.type), self._commit)
        write_json(record, asdict(training))
        return run, training

    def _run(self, seed: int) -> Run:
        folder = self._runs / self._recipe.name / f"seed-{seed}"
        config = replace(self._config, training=replace(self._config.training, seed=seed))
        if not is_run_folder(folder):
            return Run.create(folder, config, self._graph, str(self._folder))
        run = Run.open(folder)
        run.check(self._graph)
        if _portable(run.config) != _portable(config):
            raise UsageError(
                f"{folder} was trained with other settings; name another folder of runs (--runs), or remove it"
            )
        return run.with_config(config)  # the data may have moved

    def _train(self, run: Run, seed: int) -> int | None:
        """Train it to its end, or to a signal."""
        updates = run.config.training.updates
        self._watch.say(f"{self._recipe.name}, seed {seed}: {updates:,} updates, {run.folder}")
        if self._validation is None:
            self._validation = validation_set(self._graph, run.config.training)
        with self._watch.training(updates) as report:
            how = train(run, self._graph, device=self._device, validation=self._validation, on_progress=report)
        best = f"; the best after {how.best_update:,}: validation MRR {how.best_mrr:.2f}" if how.best_mrr else ""
        self._watch.say(f"{how.update:,} updates in {how.seconds:,.0f} s{best}")
        return how.signal

    def evaluated(self, run: Run, one: Experiment) -> Evaluation:
        """The figures of a run's best weights on all test queries."""
        if one.queries not in self._queries:
            self._watch.say(f"labelling {one.queries}/test")
            test = stored_queries(self._graph, self._folder / one.queries, "test")
            self._queries[one.queries] = test, hardness(self._graph.at("train"), self._graph.at("test"), *test)
        (batch, labels), how_hard = self._queries[one.queries]
        with self._watch.evaluation(f"evaluating {one.queries}/test", sum(map(len, batch.values()))) as advance:
            asked = replace(run, config=self._asked[one.name])
            model = asked.model(self._graph, self._device)
            unions = asked.config.training.unions
            return evaluate(model, batch, labels, unions=unions, hardness=how_hard, progress=advance)

    def document(
        self,
        one: Experiment,
        found: Sequence[Evaluation],
        seeds: Sequence[int],
        trained: Sequence[tuple[Run, _Training]],
    ) -> dict[str, Any]:
        """The result file of the seeds so far."""
        config = self._described(one)
        costs = [self._cost(run) for run, _ in trained]
        commits = _each(training.commit for _, training in trained)
        document = result(
            found,
            name=one.name,
            method=config["method"],
            graph=self._recipe.graph,
            queries=f"{one.queries}/test",
            seeds=seeds,
            config=config,
            commit=commits,
            machine=_each(training.machine for _, training in trained) or "",
            train_seconds=fmean(seconds for seconds, _ in costs),
            gpu_memory_gib=max(memory for _, memory in costs),
        )
        document |= self._settled(seeds)
        return document if self._commit == commits else {**document, "evaluation_commit": self._commit}

    def _settled(self, seeds: Sequence[int]) -> dict[str, Any]:
        """What a result file also tells: what was settled after training, for each seed."""
        del seeds
        return {}

    def _cost(self, run: Run) -> tuple[float, float]:
        """Of all that was trained for it: seconds, and GiB on the GPU."""
        return run.cost()

    def _described(self, one: Experiment) -> dict[str, Any]:
        """The settings as a result file has them."""
        return self._written(self._asked[one.name])

    def _written(self, config: Config) -> dict[str, Any]:
        document = _portable(config).with_bare_names().as_json()
        del document["training"]["seed"]
        return document


def _portable(config: Config) -> Config:
    """The settings without where the benchmarks lie on this machine, and for all seeds alike."""
    bare = config.with_bare_names().training
    training = replace(config.training, validation=bare.validation, leaked=bare.leaked, seed=0)
    return replace(config, training=training)


class _JoinedSeries(_Series):
    """Of a joint reasoner: a joined run for each seed, of the runs that its parts' own recipes make."""

    def __init__(self, recipe: Recipe, data: Path, runs: Path, device: torch.device, *others: Any) -> None:
        own, *rest = others
        vectors, links = (settings_of(part, own) for part in PARTS)
        super().__init__(recipe.parts[0], data, runs, device, vectors, *rest)
        self._joint, self._links = recipe, _Series(recipe.parts[1], data, runs, device, links, *rest)
        configs = self._config, self._links._config
        if recipe.weights_of is None and not all(config.training.holds_out for config in configs):
            raise UsageError(
                "valid_edges leaves nothing to weigh the parts by: leave it out, and name GRAPH-SET-best-retrained"
            )
        self._weighing: Labelled | None = None

    def ask(self, one: Experiment, settings: Sequence[str]) -> None:
        super().ask(one, settings_of("vectors", settings))

    def trained(self, seed: int) -> tuple[Run, _Training | int]:
        vectors, by = super().trained(seed)
        if not isinstance(by, _Training):
            return vectors, by
        links, also_by = self._links.trained(seed)
        if not isinstance(also_by, _Training):
            return links, also_by
        if not is_run_folder(folder := self._place(seed)):
            self._join(seed, vectors, links)
        joined = self._joined(seed)
        for own, part in ((joined.vectors, vectors), (joined.links, links)):
            if weights_digest(own) != weights_digest(part):
                raise UsageError(
                    f"{folder} was joined from other runs than {part.folder}; name another folder of runs (--runs), or "
                    "remove it"
                )
        return joined, _together(by, also_by)

    def _place(self, seed: int) -> Path:
        return self._runs / self._joint.name / f"seed-{seed}"

    def _joined(self, seed: int) -> Joined:
        """The joined run of a seed, which is there."""
        joined = open_run(self._place(seed))
        assert isinstance(joined, Joined)
        return joined

    def _join(self, seed: int, vectors: Run, links: Run) -> None:
        self._watch.say(f"{self._joint.name}, seed {seed}: weighing the parts by {self._joint.validation}/valid")
        if self._weighing is None:
            place = str((self._folder / self._joint.validation).resolve())
            self._weighing = validation_set(self._graph, replace(vectors.config.training, validation=place))
        join(self._place(seed), vectors, links, self._graph, self._weighing, device=self._device)

    def _is_ours(self, one: Experiment, config: Mapping[str, Any]) -> bool:
        had, has = ({**document, **_configs(document)} for document in (config, self._described(one)))
        return {"weighed_by": self._recipe.validation, **had} == has  # what weighed all, before results said so

    def _settled(self, seeds: Sequence[int]) -> dict[str, Any]:
        """How the parts of each seed search."""
        return {"searches": [self._joined(seed).search._asdict() for seed in seeds]}

    def _described(self, one: Experiment) -> dict[str, Any]:
        links = self._links._written(self._links._config)
        parts = {"vectors": super()._described(one), "links": links}
        return {"method": BEST, "weighed_by": self._joint.validation, **parts}


class _RetrainedSeries(_JoinedSeries):
    """Of a joint reasoner whose parts are trained again, with the facts that chose search and weights, which stay."""

    def __init__(self, recipe: Recipe, *others: Any) -> None:
        super().__init__(recipe, *others)
        assert recipe.weights_of is not None
        self._first = _JoinedSeries(recipe.weights_of, *others)

    def trained(self, seed: int) -> tuple[Run, _Training | int]:
        first, by = self._first.trained(seed)
        if not isinstance(by, _Training):
            return first, by
        again, also_by = super().trained(seed)
        if not isinstance(also_by, _Training):
            return again, also_by
        weighed, joined = self._first._joined(seed), self._joined(seed)
        if (weighed.weights, weighed.search) != (joined.weights, joined.search):
            raise UsageError(
                f"{again.folder} has other weights than {first.folder}; name another folder of runs (--runs), or "
                "remove it"
            )
        return again, _together(by, also_by)

    def _join(self, seed: int, vectors: Run, links: Run) -> None:
        first = self._first._joined(seed)
        self._watch.say(f"{self._joint.name}, seed {seed}: joining the parts as {first.folder}")
        join_as(self._place(seed), vectors, links, self._graph, first)

    def _cost(self, run: Run) -> tuple[float, float]:
        seconds, memory = zip(run.cost(), self._first._joined(run.config.training.seed).cost(), strict=True)
        return sum(seconds), max(memory)


def _configs(document: Mapping[str, Any]) -> dict[str, Config]:
    """Of the parts of a joint reasoner, from a result: settings that came later have their defaults."""
    return {part: Config.from_json(document[part]) for part in PARTS}


def _together(*trainings: _Training) -> _Training:
    machines = _each(training.machine for training in trainings)
    return _Training(machines or "", _each(training.commit for training in trainings))


def _each(values: Iterable[str | None]) -> str | None:
    """All different ones: seeds may have been trained by several, parts of one, too."""
    return "; ".join(dict.fromkeys(one for value in values if value for one in value.split("; "))) or None


@dataclass(frozen=True)
class Comparison:
    """A result beside the paper's: rows of cells under `columns`, and what they say in words."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: str


def compared(document: Mapping[str, Any]) -> Comparison:
    """The figures of a result, those of the paper where it has some, and what lies above and what below."""
    kind = set_of(document)
    figure = figure_printed(kind, document["method"])
    ours = figures_of(document, figure)
    columns = columns_of(ours)
    paper = printed(document["method"], document["graph"], kind)
    differences = {column: round(ours[column] - paper[column], 2) for column in columns if column in paper}
    rows: list[tuple[str, ...]] = [
        ("here", *(f"{ours[column]:.2f}" for column in columns)),
    ]
    if paper:
        rows += [
            ("the paper", *(f"{paper[column]:.1f}" if column in paper else "" for column in columns)),
            ("difference", *(f"{differences[column]:+.2f}" if column in differences else "" for column in columns)),
        ]
    above, below = ([column for column in differences if sign * differences[column] > 0] for sign in (1, -1))
    words = []
    if paper:
        words = [f"Above the paper: {', '.join(above) or 'none'}. Below it: {', '.join(below) or 'none'}."]
    words += [
        text
        for (queries, method), text in _CAVEATS.items()
        if document["queries"] == f"{queries}/test" and method in (None, document["method"])
    ]
    if knows_validation(document):
        words.append("Validation facts were known when it was asked; published rows may not have them.")
    if leaked_into(document):
        words.append("Trained on these very queries with their hard answers: this measures a leak, not a method.")
    seeds = ", ".join(map(str, document["seeds"]))
    title = f"{document['name']}: {figure} in percent on {document['queries']}, mean over seeds {seeds}"
    return Comparison(title, ("", *columns), tuple(rows), " ".join(words))
