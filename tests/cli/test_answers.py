"""`q2p answer` with a trained run: the same answers as in Python, filters, files, evidence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from processes import q2p, q2p_json
from query2particles.answer import Question, Reasoner
from query2particles.cli import app
from query2particles.demo import QUESTIONS
from query2particles.errors import UnknownNameError, UsageError

SPEAKERS = "French.^speaks & Africa.^on_continent"


class Call:
    """Calls `q2p answer` inside this process, where errors stay exceptions, and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], run: Path) -> None:
        self._capsys, self._run = capsys, run
        self.stdout = self.stderr = ""

    def __call__(self, *arguments: object) -> None:
        app(["answer", str(self._run), *map(str, arguments), "--split", "train"], standalone_mode=False)
        self.stdout, self.stderr = self._capsys.readouterr()

    def json(self, *arguments: object) -> Any:
        self(*arguments, "--json")
        return json.loads(self.stdout)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], atlas_run: Path) -> Call:
    return Call(capsys, atlas_run)


@pytest.fixture(scope="module")
def reasoner(atlas_run: Path) -> Reasoner:
    return Reasoner.open(atlas_run, split="train")


@pytest.mark.parametrize(("words", "syntax", "text"), QUESTIONS)
def test_the_command_says_what_python_says(call: Call, reasoner: Reasoner, words: str, syntax: Any, text: str) -> None:
    assert words
    assert call.json(text) == reasoner.answer(Question(text, syntax)).as_json()
    for method in ("exact", "neural"):
        told = call.json(text, "--method", method, "--syntax", syntax, "-k", 3)
        assert told == reasoner.answer(Question(text, syntax, 3, method)).as_json()


def test_in_a_process_of_its_own(atlas_run: Path, reasoner: Reasoner) -> None:
    told = q2p_json("answer", atlas_run, SPEAKERS, "--split", "train", "--only", "predicted")
    assert told == reasoner.answer(Question(SPEAKERS, only="predicted")).as_json()
    assert "did you mean 'French'" in q2p("answer", atlas_run, "Frensh.^speaks", code=2).stderr


def test_filters(call: Call) -> None:
    everything = call.json(SPEAKERS, "-k", 40)["answers"]
    for only in ("known", "predicted"):
        own = [answer["name"] for answer in everything if answer["status"] == only]
        told = call.json(SPEAKERS, "-k", 40, "--only", only)["answers"]
        assert [answer["name"] for answer in told][: len(own)] == own
        assert {answer["status"] for answer in told} == {only}
    least = everything[20]["probability"]
    likely = call.json(SPEAKERS, "-k", 40, "--min-probability", least - 1e-4)["answers"]
    assert 20 < len(likely) < 40
    assert min(answer["probability"] for answer in likely) >= least - 1e-4


def test_the_table_tells_guesses_from_what_is_known(call: Call) -> None:
    call(SPEAKERS, "-k", 20)
    assert re.search(r"^14 known; about [\d.]+ more expected\.$", call.stdout, re.MULTILINE)
    known, predicted = (
        [line for line in call.stdout.splitlines() if f"│ {status} " in line] for status in ("known", "predicted")
    )
    assert (len(known), len(predicted)) == (14, 6)
    assert all("│ 100 % │" in re.sub(" +", " ", line) for line in known)
    assert not any("100 %" in line for line in predicted)
    call(SPEAKERS, "--min-probability", 1, "--only", "predicted")
    assert "no answer passes the filters" in call.stdout


def test_guesses_are_folded_away_where_the_known_answers_look_complete(call: Call, reasoner: Reasoner) -> None:
    text = next(
        text
        for country in ("Iceland", "Japan", "Canada", "Norway", "Kenya", "Chile")
        if reasoner.answer(text := f"{country}.on_continent").complete
    )
    folded = call.json(text)
    assert (folded["complete"], {one["status"] for one in folded["answers"]}) == (True, {"known"})
    call(text)
    assert "known; " in call.stdout
    assert " complete.\n" in call.stdout
    assert re.search(r"guesses are folded away, the likeliest .* %; --guesses shows them\.", call.stdout)
    unfolded = call.json(text, "--guesses")
    assert unfolded["folded"] == []
    assert unfolded["answers"] == folded["answers"] + folded["folded"]
    call(text, "--guesses")
    assert "folded away" not in call.stdout


def test_why_a_single_fact_is_as_likely_as_it_is(call: Call) -> None:
    call("French.^speaks", "--only", "predicted", "-k", 1, "--explain")
    (why,) = re.findall(r"^why: (.*)$", call.stdout, re.MULTILINE)
    assert 1 <= len(why.split(" · ")) <= 4
    assert all(re.fullmatch(r".+ [+−]\d+\.\d", reason) for reason in why.split(" · "))


def test_stored_facts_alone_pass_filters_too(call: Call) -> None:
    call(SPEAKERS, "--method", "exact", "--only", "predicted")
    assert call.stdout.splitlines()[1:] == [
        "14 answers from stored facts",
        "nothing to show: no answer passes the filters",
    ]
    call("French.on_continent", "--method", "exact")
    assert call.stdout.splitlines()[1:] == ["0 answers from stored facts"]


def test_evidence(call: Call) -> None:
    text = '("Turing Award".^award_received & !Canada.^citizen_of).graduated_from'
    told = call.json(text, "-k", 2, "--explain")
    assert [one["answer"]["name"] for one in told["evidence"]] == [one["name"] for one in told["answers"]]
    assert told["evidence"][0]["tree"]["fact"]["relation"]["name"] == "graduated_from"
    call(text, "-k", 2, "--explain")
    assert "award received(" in call.stdout
    assert "└─ not excluded by stored facts: " in call.stdout
    assert "stored" in call.stdout


def test_several_questions_and_files(call: Call, tmp_path: Path) -> None:
    one, other = call.json("French.^speaks", "Africa.^on_continent")
    assert (one["query"], other["query"]) == ("French.^speaks", "Africa.^on_continent")
    file = tmp_path / "questions.txt"
    file.write_text("# two of them\nFrench.^speaks\n\nAfrica.^on_continent\n")
    assert call.json("--file", file) == [{"line": 2, **one}, {"line": 4, **other}]
    call("--file", file, "-k", 1)
    assert len(re.findall(r"^\d+ known; ", call.stdout, re.MULTILINE)) == 2


def test_wrong_calls(call: Call, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="either a QUERY or a --file"):
        call()
    with pytest.raises(UnknownNameError, match="Frensh"):
        call("French.^speaks", "Frensh.^speaks")
    with pytest.raises(UsageError, match="does not exist"):
        call("--file", tmp_path / "nowhere")
    with pytest.raises(UsageError, match="exact answers only"):
        app(["answer", "atlas", "Canada", "--method", "neural"], standalone_mode=False)
