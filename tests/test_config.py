"""Settings: read from text, from files and from what was saved; refused where they mean nothing."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from query2particles.config import Config, Training, answered_by, build, configured, extended
from query2particles.engine.method import lacking
from query2particles.errors import UsageError
from query2particles.methods.registry import METHODS, trainee_of
from query2particles.presets import PRESETS, preset
from query2particles.query.algebra import SHAPES
from worlds import random_graph

MODELS = {method: get_type_hints(type(entry.settings())) for method, entry in METHODS.items()}
KEYS = [
    *(("q2p", "training", name, hint) for name, hint in get_type_hints(Training).items()),
    *((method, "model", name, hint) for method, hints in MODELS.items() for name, hint in hints.items()),
]
"""Every setting, with a method that has it."""
each_key = pytest.mark.parametrize(("method", "part", "name", "hint"), KEYS, ids=[f"{key[0]} {key[2]}" for key in KEYS])
each_preset = pytest.mark.parametrize(
    ("method", "name"), [(method, name) for method in PRESETS for name in PRESETS[method]]
)


def another(hint: Any, default: Any) -> tuple[str, Any]:
    """A value of a setting that is not its default, as text and as it is."""
    if hint is bool:
        return str(not default).lower(), not default
    if hint is int:
        return str(default + 3), default + 3
    if hint is float:
        value = 0.25 if default != 0.25 else 0.5
        return repr(value), value
    if hint is str:
        return "a folder", "a folder"
    if int in get_args(hint):  # or a word
        return "77", 77
    if isinstance(get_args(hint)[0], str):
        value = next(choice for choice in get_args(hint) if choice != default)
        return value, value
    return "1p:2, 2in:0.5", {"1p": 2.0, "2in": 0.5}


@pytest.mark.parametrize("method", METHODS)
def test_no_key_belongs_to_both_parts(method: str) -> None:
    model, training = set(MODELS[method]), set(get_type_hints(Training))
    assert not model & training
    assert not (model | training) & {"method", "preset", "training"}
    # A file may have its model's settings in a table, and still name a setting `model`.
    assert all(get_args(hints["model"]) for hints in MODELS.values() if "model" in hints)


@each_key
def test_every_setting_from_text(method: str, part: str, name: str, hint: Any) -> None:
    start = preset(method)
    text, value = another(hint, getattr(getattr(start, part), name))
    for spelled in (f"{name}={text}", f" {name.replace('_', '-')} = {text} "):
        changed = configured(start, None, [spelled])
        assert getattr(getattr(changed, part), name) == value
        assert type(getattr(getattr(changed, part), name)) is type(value)
        found = changed.as_json()
        found[part][name] = start.as_json()[part][name]
        assert found == start.as_json()


@each_key
@pytest.mark.parametrize("value", ["", "nan", "-1", "1e999", "x", "0x10", "None", "[]"])
def test_hostile_text_is_refused(method: str, part: str, name: str, hint: Any, value: str) -> None:
    if hint is str:
        assert getattr(configured(preset(method), None, [f"{name}={value}"]).training, name) == value
        return
    if (name, value) == ("threshold", "-1"):  # one of few numbers that may be below zero
        assert configured(preset(method), None, [f"{name}={value}"]).model.threshold == -1
        return
    del part
    with pytest.raises(UsageError, match=name) as caught:
        configured(preset(method), None, [f"{name}={value}"])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "setting",
    [
        "dimension=0",
        "particles=1.5",
        "dropout=1",
        "smoothing=1",
        "union_share=1.1",
        "batch=0",
        "updates=0",
        "clip=0",
        "seed=-1",
        "seed=9223372036854775808",
        "mix=1p:0",
        "mix=1p:-1",
        "mix=9p:1",
        "mix=1p",
        "mix=1p:inf",
        "unions=union",
        "all_edges=maybe",
        "valid_edges=maybe",
        "updates=1" + 40 * "0",
        "rate=1e31",
        "rate",
    ],
)
def test_values_out_of_range(setting: str) -> None:
    with pytest.raises(UsageError):
        configured(preset(), None, [setting])


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        *(("gqe", f"{key}=0") for key in ("dimension", "block")),
        *(("betae", f"{key}=0") for key in ("hidden",)),
        ("tree", "least=2"),
        *(("cqd-beam", setting) for setting in ("beam=0", "t_norm=minimum", "model=rescal", "truth=yes")),
        *(("cqd-co", setting) for setting in ("steps=-1", "step_size=x")),
        *(("emql", setting) for setting in ("triples=0", "depth=0", "width=0", "dropout=1", "sketch=2")),
        *(("q2p", setting) for setting in ("loss=hinge", "negatives=-1", "subsampling=often", "edge_share=1.1")),
        *((method, "particles=3") for method in METHODS if method != "q2p"),  # it belongs to another method
    ],
)
def test_values_that_other_methods_have_no_use_for(method: str, setting: str) -> None:
    with pytest.raises(UsageError):
        configured(preset(method), None, [setting])


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean dimension"):
        configured(preset(), None, ["dimensions=3"])
    with pytest.raises(UsageError, match=r"there are .*dropout"):
        configured(preset(), None, ["xyzzy=3"])


def test_a_file_and_then_single_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        "batch = 7\n[model]\ndimension = 32\nresidual = false\n[training]\nrate = 1\nseed = 5\n[training.mix]\n1p = 1\n"
    )
    found = configured(preset(), file, ["seed=6"])
    assert (found.training.batch, found.model.dimension, found.model.residual) == (7, 32, False)
    assert (found.training.rate, found.training.seed, found.training.mix) == (1.0, 6, {"1p": 1.0})
    assert found.training.updates == preset().training.updates


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch = ", "is no TOML"),
        ("batch = true", "batch is a whole number"),
        ("rate = true", "rate is a number"),
        ("batch = 1.0", "batch is a whole number"),
        ("rate = nan", "rate is"),
        ("workload = 5", "workload is text"),
        ("mix = 5", "mix takes weights"),
        ("mix = [1]", "mix takes weights"),
        ("unions = ['dnf']", "unions is one of"),
        ("[modle]\ndimension = 3", "there is no setting 'modle'"),
        ("a = " + "[" * 5000, "is no TOML"),
    ],
)
def test_files_that_say_nothing_sensible(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        configured(preset(), file)
    assert "settings.toml" in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        configured(preset(), tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"workload = '\xe9'")
    with pytest.raises(UsageError, match="is no TOML"):
        configured(preset(), tmp_path / "latin.toml")


def test_presets() -> None:
    assert preset() == PRESETS["q2p"]["default"]
    assert (preset().model, preset().method) == (Config().model, Config().method)
    with pytest.raises(UsageError, match="q2p has no preset 'papers'; it has default"):
        preset("q2p", "papers")
    with pytest.raises(
        UsageError, match=r"there is no method 'gqi' to train by itself; there are q2p, gqe, .* and best, "
    ):
        preset("gqi")


def test_every_method_has_presets_for_a_gpu_and_for_a_cpu() -> None:
    assert PRESETS.keys() == METHODS.keys()
    for method, presets in PRESETS.items():
        assert {"default", "small"} <= presets.keys()
        assert preset(method).model == METHODS[method].settings()


@each_preset
def test_a_preset_is_of_its_method(method: str, name: str) -> None:
    config = preset(method, name)
    assert (config.method, config.preset) == (method, name)
    assert type(config.model) is type(METHODS[method].settings())
    assert config == configured(config, None, [f"seed={config.training.seed}"]), "no setting is refused"


@each_preset
def test_a_preset_makes_a_model_that_can_be_trained_and_validated(method: str, name: str) -> None:
    """On what its mix names; with unions answered as it says, validation has shapes of every kind of operator."""
    config = preset(method, name)
    model = build(config, random_graph(3, entities=11, relations=2, facts=30))
    assert model.operators == METHODS[method].operators
    assert config.training.unions in METHODS[method].unions
    trained = trainee_of(model)
    for shape, weight in config.training.mix.items():
        assert not weight or not lacking(trained.operators, SHAPES[shape])


@each_preset
def test_a_saved_configuration_reads_back_as_it_was(method: str, name: str) -> None:
    start = preset(method, name)
    changed = configured(start, None, ["dimension=17", "mix=1p:0.3", "rate=0.1", "validation=été"])
    for config in (start, changed):
        assert Config.from_json(json.loads(json.dumps(config.as_json()))) == config


def test_unions_that_a_method_cannot_answer_so_are_refused() -> None:
    for method, entry in METHODS.items():
        for unions in ("native", "dnf", "de-morgan"):
            setting = [f"unions={unions}"]
            if unions in entry.unions:
                assert configured(preset(method), None, setting).training.unions == unions
                continue
            ways = " or ".join(entry.unions)
            with pytest.raises(UsageError, match=f"^{method} cannot answer unions as {unions}, but as {ways}$"):
                configured(preset(method), None, setting)


@pytest.mark.parametrize(
    ("method", "mix", "words"),
    [
        ("gqe", "1p:1,2in:1", "gqe has no complement: leave 2in out of mix"),
        ("q2b", "up:1", "q2b has no union: leave up out of mix"),
        ("links", "2i:1", "links has no intersection: leave 2i out of mix"),
        ("links", "1p:1,pin:0.1", "links has no intersection and no complement: leave pin out of mix"),
        ("emql", "2in:1", "emql has no complement: leave 2in out of mix"),
        ("cqd-beam", "1p:1,2i:1", "no intersection: leave 2i out of mix"),
        ("cqd-co", "1p:1,2i:1", "no intersection: leave 2i out of mix"),
    ],
)
def test_shapes_that_a_method_cannot_be_trained_on_are_refused(method: str, mix: str, words: str) -> None:
    """What counts is what is trained: of a method on top of a link predictor, that."""
    with pytest.raises(UsageError, match=words):
        configured(preset(method), None, [f"mix={mix}"])


@pytest.mark.parametrize("method", METHODS)
def test_shapes_without_weight_may_be_named(method: str) -> None:
    assert configured(preset(method), None, ["mix=1p:1,2in:0,up:0"]).training.mix == {"1p": 1, "2in": 0, "up": 0}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("setting", "shape"), [("union_share=0.5", "2u"), ("inverted_complements=true", "2in")])
def test_options_that_add_shapes_to_a_batch_need_a_method_for_them(method: str, setting: str, shape: str) -> None:
    model = trainee_of(build(configured(preset(method), None, ["dimension=4"]), random_graph(1)))
    if lacking(model.operators, SHAPES[shape]):
        with pytest.raises(UsageError, match=setting.partition("=")[0]):
            configured(preset(method), None, [setting])
    else:
        configured(preset(method), None, [setting])


def test_methods_on_the_same_ground_answer_for_each_other() -> None:
    links = configured(preset("links"), None, ["dimension=7", "model=distmult", "updates=3"])
    beam = answered_by(links, "cqd-beam", ["beam=5"])
    assert (beam.method, beam.model.beam, beam.model.dimension, beam.model.model) == ("cqd-beam", 5, 7, "distmult")
    assert beam.training.updates == 3
    assert beam.training.unions == "native"
    other = answered_by(beam, "cqd-co", ["steps=9"])
    assert (other.method, other.model.steps, other.model.dimension) == ("cqd-co", 9, 7)
    assert other.training.unions == "dnf"
    back = answered_by(other, "links")
    assert (back.method, back.model) == ("links", links.model)
    assert answered_by(links, "links", ["n3=0.5"]).model.n3 == 0.5
    for method, trained in (("gqe", links), ("cqd-beam", preset("gqe")), ("q2b", preset("gqe"))):
        with pytest.raises(UsageError, match=f"{method} cannot answer with what {trained.method} has learned"):
            answered_by(trained, method)
    with pytest.raises(UsageError, match="method is one of q2p"):
        answered_by(links, "cqd")


@pytest.mark.parametrize(
    ("method", "settings", "named"),
    [
        ("links", ("dimension=8",), "dimension"),
        ("tree", ("beam=3", "dimension=8", "model=transe"), "dimension, model"),
        ("tree", ("beam=3", "rate=0.5", "updates=9"), "rate, updates"),
        ("links", ("seed=3",), "seed"),
    ],
)
def test_what_was_trained_is_as_it_is(method: str, settings: tuple[str, ...], named: str) -> None:
    trained = configured(preset("links"), None, ["dimension=7"])
    before = torch.random.get_rng_state()
    with pytest.raises(UsageError, match=rf"^{named}: "):
        answered_by(trained, method, settings)
    assert answered_by(trained, "tree", ["t_norm=godel", "beam=9", "unions=dnf"]).model.beam == 9
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(UsageError, match=r"^keep: "):
        answered_by(preset(), "q2p", ["keep=sample"])


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2)
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "method": values | st.sampled_from(list(METHODS)),
            "preset": values,
            "model": values | st.dictionaries(st.sampled_from(sorted(set().union(*MODELS.values()))), values),
            "training": values | st.dictionaries(st.sampled_from([field.name for field in fields(Training)]), values),
        },
    )
)
@example({"method": "gqe"})  # for which the default settings of training will not do
def test_hostile_documents_give_a_sound_configuration_or_an_error(document: dict[str, Any]) -> None:
    try:
        config = Config.from_json(document)
    except (UsageError, TypeError, ValueError, AttributeError):  # what `Run.open` makes an error of the run
        return
    assert type(config.model) is type(METHODS[config.method].settings())
    hints = {"model": MODELS[config.method], "training": get_type_hints(Training)}
    for part, several in hints.items():
        for name, hint in several.items():
            value = getattr(getattr(config, part), name)
            if hint in (int, float):
                assert math.isfinite(value)
                assert value >= 0 or name == "threshold"
    assert Config.from_json(json.loads(json.dumps(config.as_json()))) == config


def test_only_a_constant_schedule_can_be_prolonged() -> None:
    constant = configured(preset(), None, ["schedule=constant", "updates=10"])
    assert extended(constant, []) == constant
    assert extended(constant, ["updates=20"]).training.updates == 20
    with pytest.raises(UsageError, match="not shrink"):
        extended(constant, ["updates=5"])
    with pytest.raises(UsageError, match="only updates can be set anew"):
        extended(constant, ["updates=20", "rate=1"])
    cosine = configured(preset(), None, ["schedule=cosine", "updates=10"])
    assert extended(cosine, ["updates=10"]) == cosine
    with pytest.raises(UsageError, match="a cosine schedule ends"):
        extended(cosine, ["updates=20"])


def test_folders_of_queries_may_have_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    config = configured(preset(), None, ["validation=old"]).with_absolute_paths()
    assert extended(config, ["validation=new"]).training.validation == str(tmp_path / "new")
    for setting in ("validation=", "workload=new"):  # other queries, not another place
        with pytest.raises(UsageError, match=r"only updates can be set anew, and where its folders of queries are"):
            extended(config, [setting])
    (tmp_path / "old").rmdir()
    with pytest.raises(
        UsageError, match=r"no folder '.*old' of queries.*where it has moved, --set validation=DIR says"
    ):
        extended(config, [])
    with pytest.raises(UsageError, match="there is no folder 'nowhere'"):
        extended(config, ["validation=nowhere"])


def test_paths_are_kept_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queries").mkdir()
    kept = configured(preset(), None, ["workload=queries"]).with_absolute_paths().training
    assert (kept.workload, kept.validation) == (str(tmp_path / "queries"), "")


def test_a_result_says_the_names_of_folders_and_not_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "some" / "queries").mkdir(parents=True)
    config = configured(preset(), None, [f"validation={tmp_path / 'some' / 'queries'}", "updates=7"])
    bare = config.with_bare_names()
    assert bare.training == replace(config.training, validation="queries")
    assert bare.with_bare_names() == bare


def test_a_model_of_the_settings() -> None:
    config = configured(preset(), None, ["dimension=6", "particles=3"])
    model = build(config, random_graph(3, entities=11, relations=2, facts=30))
    tables = {name: tuple(table.shape) for name, table in model.named_parameters(recurse=False)}
    assert tables == {"entities": (11, 6), "relations": (4, 6), "offsets": (3, 6), "bias": (11,)}


def test_a_model_is_attached_to_the_edges_that_it_is_trained_on() -> None:
    graph = random_graph(3, entities=11, relations=2, facts=30)
    for setting, edges in (
        ("all_edges=false", graph.at("train")),
        ("valid_edges=true", graph.at("valid")),
        ("all_edges=true", graph.at("test")),
    ):
        model: Any = build(configured(preset("emql"), None, ["dimension=6", setting]), graph)
        assert len(model.triples.objects) == len(edges.tails)


@pytest.mark.parametrize(
    ("settings", "split", "known"),
    [
        ([], "train", "train"),
        (["stored=valid"], "train", "valid"),
        (["valid_edges=true"], "valid", "valid"),
        (["valid_edges=true", "stored=valid"], "valid", "valid"),
        (["all_edges=true"], "test", "test"),
        (["all_edges=true", "valid_edges=true", "stored=valid"], "test", "test"),
    ],
)
def test_what_is_trained_on_is_stored(settings: list[str], split: str, known: str) -> None:
    training = configured(preset(), None, settings).training
    assert (training.split, training.known, training.holds_out) == (split, known, split == "train")


def test_settings_that_were_saved_before_there_were_valid_edges() -> None:
    document = preset().as_json()
    del document["training"]["valid_edges"]
    assert Config.from_json(document) == preset()
