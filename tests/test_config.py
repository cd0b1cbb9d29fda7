"""Settings: read from text, from files and from what was saved; refused where they mean nothing."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query2particles.config import Config, Training, build, configured, extended
from query2particles.presets import PRESETS, preset
from query2particles.errors import UsageError
from query2particles.methods.q2p import Settings

PARTS = {"model": Settings, "training": Training}
HINTS = {part: get_type_hints(kind) for part, kind in PARTS.items()}
KEYS = [(part, name, hint) for part, hints in HINTS.items() for name, hint in hints.items()]


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
    if isinstance(get_args(hint)[0], str):
        value = next(choice for choice in get_args(hint) if choice != default)
        return value, value
    return "1p:2, 2in:0.5", {"1p": 2.0, "2in": 0.5}


def test_no_key_belongs_to_both_parts() -> None:
    model, training = (set(hints) for hints in HINTS.values())
    assert not model & training
    assert not (model | training) & {"method", "preset", "model", "training"}


@pytest.mark.parametrize(("part", "name", "hint"), KEYS, ids=[name for _, name, _ in KEYS])
def test_every_setting_from_text(part: str, name: str, hint: Any) -> None:
    text, value = another(hint, getattr(getattr(preset(), part), name))
    for spelled in (f"{name}={text}", f" {name.replace('_', '-')} = {text} "):
        changed = configured(preset(), None, [spelled])
        assert getattr(getattr(changed, part), name) == value
        assert type(getattr(getattr(changed, part), name)) is type(value)
        unchanged = {**changed.as_json()[part]}
        assert {**unchanged, name: preset().as_json()[part][name]} == preset().as_json()[part]


@pytest.mark.parametrize(("part", "name", "hint"), KEYS, ids=[name for _, name, _ in KEYS])
@pytest.mark.parametrize("value", ["", "nan", "-1", "1e999", "x", "0x10", "None", "[]"])
def test_hostile_text_is_refused(part: str, name: str, hint: Any, value: str) -> None:
    del part
    if hint is str:
        assert getattr(configured(preset(), None, [f"{name}={value}"]).training, name) == value
        return
    with pytest.raises(UsageError, match=name) as caught:
        configured(preset(), None, [f"{name}={value}"])
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
        "updates=1" + 40 * "0",
        "rate=1e31",
        "rate",
    ],
)
def test_values_out_of_range(setting: str) -> None:
    with pytest.raises(UsageError):
        configured(preset(), None, [setting])


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
    assert preset() == PRESETS["q2p"]["default"] == Config()
    for name in ("default", "paper", "released"):
        assert preset("q2p", name).preset == name
    with pytest.raises(UsageError, match="has no preset 'papers'; it has default"):
        preset("q2p", "papers")
    with pytest.raises(UsageError, match="no method 'gqe'"):
        preset("gqe")


@pytest.mark.parametrize("name", PRESETS["q2p"])
def test_a_saved_configuration_reads_back_as_it_was(name: str) -> None:
    config = configured(preset("q2p", name), None, ["dimension=17", "mix=2i:0.3,1p:1", "rate=0.1", "validation=été"])
    assert Config.from_json(json.loads(json.dumps(config.as_json()))) == config


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2)
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "method": values,
            "preset": values,
            **{
                part: values | st.dictionaries(st.sampled_from([field.name for field in fields(kind)]), values)
                for part, kind in PARTS.items()
            },
        },
    )
)
def test_hostile_documents_give_a_sound_configuration_or_an_error(document: dict[str, Any]) -> None:
    try:
        config = Config.from_json(document)
    except (UsageError, TypeError, ValueError, AttributeError):  # what `Run.open` makes an error of the run
        return
    assert config.method == "q2p"
    for part, name, hint in KEYS:
        value = getattr(getattr(config, part), name)
        if hint in (int, float):
            assert math.isfinite(value)
            assert value >= 0
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


def test_a_model_of_the_settings() -> None:
    graph = random_graph(3, entities=11, relations=2, facts=30)
    shapes = {name: tuple(table.shape) for name, table in build(
        configured(preset(), None, ["dimension=6", "particles=3"]), graph).named_parameters(recurse=False)}
    assert shapes == {"entities": (11, 6), "relations": (4, 6), "offsets": (3, 6), "bias": (11,)}
