"""`q2p shell`: through a pipe, and through a terminal as a person has it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from processes import ENVIRONMENT
from query2particles.answer import Question, Reasoner
from query2particles.cli.shell import Shell, completions, history_file
from query2particles.graph.graph import Graph

SPEAKERS = "French.^speaks & Africa.^on_continent"


@pytest.fixture
def shell(atlas_run: Path) -> Shell:
    return Shell(Reasoner.open(atlas_run, split="train"), Question(""))


def test_who_wants_to_leave_is_told_how(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert not shell.hear("exit")
    assert ":quit" in capsys.readouterr().err
    assert not shell.hear("nobody")
    assert ":quit" not in capsys.readouterr().err


def test_a_conversation(shell: Shell, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert shell.hear(SPEAKERS)
    assert "14 known; about " in capsys.readouterr().out
    for line in (":only predicted", ":k 3", SPEAKERS):
        assert shell.hear(line)
    assert shell.last is not None
    assert len(shell.last.answers) == 3
    capsys.readouterr()
    assert shell.hear(":explain 2")
    told = capsys.readouterr().out
    assert told.startswith(f"{shell.last.answers[1].label}: predicted, probability ")
    assert f"speaks({shell.last.answers[1].label}, French)" in told
    assert shell.hear(":guesses always")
    assert shell.question.guesses == "always"
    target = tmp_path / "answers.json"
    assert shell.hear(f":save {target}")
    assert json.loads(target.read_text()) == shell.last.as_json()
    assert shell.hear(":method exact")
    assert shell.hear(":only all")
    assert shell.hear(SPEAKERS)
    assert "the first 3 by name" in capsys.readouterr().out
    assert shell.hear("# a remark")
    assert shell.hear("")
    assert not shell.closed
    assert shell.hear(":quit")
    assert shell.closed


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Frensh.^speaks", "did you mean 'French'"),
        (":explain 1", "ask something first"),
        (":save answers.json", "ask something first"),
        (":k none", "how many answers"),
        (":k 0", "from 1 on"),
        (":k -5", "from 1 on"),
        (":method guess", "exact, neural, both, best, fast; it is both now"),
        (":only some", "known, predicted or all; it is all now"),
        (":guesses never", "auto, always; it is auto now"),
        (":save", "name of a new file"),
        (":what", "there are :explain, :k"),
        (":save /proc/nowhere/x", "ask something first"),
        (":\x1b[31mred", "there is no command :·[31mred"),
    ],
)
def test_errors_are_told_and_the_shell_goes_on(
    shell: Shell, line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not shell.hear(line)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert words in told.err
    assert not shell.closed


def test_what_is_explained_is_of_the_last_question(
    shell: Shell, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shell.hear("Canada.^citizen_of")
    shell.hear(":explain 99")
    assert "there is no answer 99" in capsys.readouterr().err
    there = tmp_path / "mine.json"
    there.write_text("mine")
    assert not shell.hear(f":save {there}")
    assert not shell.hear(f":save {there / 'below'}")
    capsys.readouterr()
    assert not shell.hear(":save ~nobody-of-that-name/mine.json")
    assert "name the file in full" in capsys.readouterr().err
    assert not shell.hear(":save nu\0ll")
    assert "name of a new file" in capsys.readouterr().err
    assert there.read_text() == "mine"
    shell.hear("Canda")
    assert not shell.hear(":explain 1")
    assert "ask something first" in capsys.readouterr().err


def test_a_graph_alone_has_exact_answers(named: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(Reasoner(named), Question("", method="exact"))
    assert not shell.hear(":method both")
    assert "start q2p shell with a run" in capsys.readouterr().err
    assert shell.hear("Bob.citizen_of")
    assert shell.hear(":explain 1")
    assert "citizen_of(Bob, Israel)   stored" in capsys.readouterr().out


def start_of_word(line: str) -> int:
    """Where readline starts what it completes, by our delimiters."""
    return max(line.rfind(character) for character in " \t\n.&|!^()<>\"',") + 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Isr", ["Israel"]),
        ("Ann & Isr", ["Israel"]),
        ("Tur", ['"Turing Award"']),
        ('"Tur', ['Turing Award"']),
        ('"Turing Aw', ['Award"']),
        ('"Turing Award".^aw', ["award_received"]),
        ("Ann.", ["award_received", "citizen_of", "graduated_from", '"lives in"']),
        ('Ann."li', ['lives in"']),
        ('Ann."lives i', ['in"']),
        ("?x : citizen_of(?x, Can", ["Canada"]),
        ("?x : citi", ["citizen_of"]),
        ("Springfield", ['"Springfield (Illinois)"', '"Springfield (Ohio)"']),
        ('"odd \\"', ['name\\" \\\\ with.signs & more"']),
        ("zzz", []),
        (":e", [":explain "]),
        (":", [":explain ", ":k ", ":method ", ":only ", ":guesses ", ":save ", ":help ", ":quit "]),
        (":method n", ["neural"]),
        (":only ", ["known", "predicted", "all"]),
        (":guesses a", ["auto", "always"]),
        (":k 1", []),
    ],
)
def test_completion(named: Graph, line: str, expected: list[str]) -> None:
    assert completions(named, line, start_of_word(line)) == expected


def test_labels_complete_too(atlas: Graph) -> None:
    found = completions(atlas, '"Turing Aw', 8)
    assert found == ['Award"']
    assert len(completions(atlas, "S", 0)) > 20


def test_history_is_in_the_folder_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "query2particles" / "history"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert history_file() == tmp_path / "home" / ".local" / "state" / "query2particles" / "history"


def test_without_a_home_there_is_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert history_file() is None


COMMAND = [sys.executable, "-m", "query2particles", "shell", "atlas"]


def test_through_a_pipe(tmp_path: Path) -> None:
    given = b"?x : capital_of(?x, France)\n\xff\xfe\nCanda\n:explain 1\n:quit\nCanada.^citizen_of\n"
    done = subprocess.run(
        COMMAND,
        input=given,
        capture_output=True,
        check=False,
        env={**ENVIRONMENT, "XDG_STATE_HOME": str(tmp_path), "PYTHONIOENCODING": "utf-8:strict"},
        timeout=60,
    )
    told, errors = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 1
    assert "Paris" in told
    assert "q2p>" not in told
    assert "citizen_of" not in told
    assert "Traceback" not in errors
    assert "  Canda\n  ^^^^^\n" in errors
    assert not list(tmp_path.iterdir())


def test_through_a_terminal(tmp_path: Path) -> None:
    """Tab completes, what was asked is remembered, Ctrl-C gives up a line and Ctrl-D the shell."""
    ours, theirs = pty.openpty()
    environment = {**ENVIRONMENT, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}
    # What runs in the background may be deaf to Ctrl-C: hear again.
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); " + (
        "from query2particles.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "shell", "atlas"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        close_fds=True,
    )
    os.close(theirs)
    shown = ""

    def until(words: str) -> None:
        nonlocal shown
        deadline = time.monotonic() + 60
        while words not in shown and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.2)[0]:
                shown += os.read(ours, 4096).decode(errors="replace")
        assert words in shown, shown
        shown = shown.partition(words)[2]

    try:
        until("q2p> ")
        os.write(ours, b"France.^capi\t\n")
        until("France.^capital_of")
        until("Paris")
        until("q2p> ")
        os.write(ours, b":explain 1\n")
        until("stored")
        until("q2p> ")
        os.write(ours, b"nobody")
        until("nobody")
        time.sleep(1)  # until it waits for the next key: a signal before that is heard with the key
        process.send_signal(signal.SIGINT)
        until("q2p> ")
        os.write(ours, b'"Turing Aw\t.^award_r\t\n')
        until("answers from stored facts")
        until("q2p> ")
        os.write(ours, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    history = (tmp_path / "query2particles" / "history").read_text().splitlines()
    assert [line for line in history if not line.startswith("_")] == [
        "France.^capital_of",
        ":explain 1",
        '"Turing Award".^award_received',
    ]
