"""What tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calls import Call
from worlds import random_graph


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    torch.set_num_threads(1)
    return Call(capsys)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs") / "graph"
    random_graph(3, entities=40, relations=3, facts=400).save(folder)
    return folder
