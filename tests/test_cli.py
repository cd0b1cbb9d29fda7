"""The command line as a person uses it: real processes, exit codes, JSON alone on stdout, helpful errors."""

from __future__ import annotations

import json
import lzma
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from query2particles.cli.graphs import size_named
from query2particles.errors import UsageError
from query2particles.query.algebra import SHAPES

FACTS = "ann\tknows\tbob\nbob\tknows\teve\neve\tknows\tann\nann\tlikes\teve\nbob\tlikes\tann\n"


def q2p(*arguments: str | Path, code: int = 0, given: str | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "query2particles", *map(str, arguments)],
        capture_output=True,
        text=True,
        input=given,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def q2p_json(*arguments: str | Path, code: int = 0, given: str | None = None) -> Any:
    return json.loads(q2p(*arguments, "--json", code=code, given=given).stdout)


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    path = tmp_path / "facts.tsv"
    path.write_text(FACTS)
    return path


def test_version_and_help() -> None:
    assert q2p("--version").stdout.startswith("query2particles ")
    for command in ("demo", "answer", "sample", "bench", "graph", "data"):
        assert command in q2p("--help").stdout
    assert q2p(code=2).stdout


def test_the_same_question_in_every_syntax() -> None:
    texts = [
        '("Turing Award".^award_received & !Canada.^citizen_of).graduated_from',
        '?x : exists y. award_received(y, "Turing Award") & !citizen_of(y, Canada) & graduated_from(y, ?x)',
        'SELECT ?x { ?y :award_received "Turing Award" ; :graduated_from ?x MINUS { ?y :citizen_of :Canada } }',
    ]
    results = [q2p_json("answer", "atlas", text, "-k", "100") for text in texts]
    assert results[0]["shape"] == "inp"
    assert results[0]["total"] == len(results[0]["answers"]) == 61
    for result in results[1:]:
        assert result["answers"] == results[0]["answers"]


def test_answers_of_a_level() -> None:
    question = "France.^in_country"
    counts = [q2p_json("answer", "atlas", question, "--split", split)["total"] for split in ("train", "valid", "test")]
    assert counts == sorted(counts)
    assert counts[0] < counts[2]


def test_an_answer_table_names_what_it_leaves_out() -> None:
    shown = q2p("answer", "atlas", "France.^in_country", "-k", "2", "--method", "exact").stdout
    assert "the first 2 by name" in shown
    nothing = q2p("answer", "atlas", "France.^citizen_of & Kenya.^citizen_of").stdout
    assert "0 answers" in nothing


def test_a_complement_at_the_root_warns() -> None:
    done = q2p("answer", "atlas", "!France.^in_country", "-k", "1")
    assert "entities answer it" in done.stderr
    assert "warning" in q2p_json("answer", "atlas", "!France.^in_country", "-k", "1")


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Canda.^citizen_of", "did you mean 'Canada'"),
        ("Canada.^citizen_off", "'citizen_of'"),
        ("Canada &", "ends too early"),
        ("?x : citizen_of(?x, ?y)", "?y"),
        ("SELECT ?x { ?x ?p ?o }", "?p"),
        ("[1,[999]]", "relation 999 does not exist"),
        ("", "ends too early"),
    ],
)
def test_questions_that_cannot_be_understood(question: str, words: str) -> None:
    done = q2p("answer", "atlas", question, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert words in done.stderr


def test_files_of_questions(tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_text("# remarks are passed over\n\nCanada.^citizen_of\n?x : capital_of(?x, France)\n")
    results = q2p_json("answer", "atlas", "--file", file)
    assert [result["line"] for result in results] == [3, 4]
    assert results[1]["answers"][0]["label"] == "Paris"
    assert q2p_json("answer", "atlas", "--file", "-", given="Canada\n")[0]["total"] == 1
    file.write_text("Canada\nnonsense &\n")
    done = q2p("answer", "atlas", "--file", file, code=1)
    assert "line 2: " in done.stderr
    assert "1 of 2 questions" in done.stderr
    assert "error" in q2p_json("answer", "atlas", "--file", file, code=1)[1]
    q2p("answer", "atlas", code=2)
    q2p("answer", "atlas", "Canada", "--file", file, code=2)
    q2p("answer", "atlas", "--file", tmp_path / "nowhere", code=2)


def test_import_ask_sample_check(facts: Path, tmp_path: Path) -> None:
    graph = tmp_path / "graph"
    told = q2p_json("graph", "import", facts, "--out", graph)
    assert (told["entities"], told["relations"], told["facts_total"]) == (3, 2, 5)
    assert told["name"] == "facts"
    assert q2p_json("graph", "info", graph) == told
    assert "knows" in q2p("graph", "info", graph).stdout
    result = q2p_json("answer", graph, "ann.knows.knows & !ann.knows")
    assert [answer["name"] for answer in result["answers"]] == ["eve"]
    out = tmp_path / "queries"
    drawn = q2p_json("sample", graph, "--split", "train", "--shapes", "2p,u(p(e),p(e))", "--count", "4", "--out", out)
    assert [row["shape"] for row in drawn["shapes"]] == ["2p", "2u"]
    checked = q2p_json("data", "check", out, "--graph", graph)
    assert (checked["verified_queries"], checked["problems"]) == (8, 0)
    (out / "train-2p.jsonl.xz").write_bytes(lzma.compress(b"[0,[0,0]]\n"))
    assert q2p_json("data", "check", out, "--graph", graph, code=1)["problems"] == 1
    assert "differ" in q2p("data", "check", out, "--graph", graph, code=1).stderr


def test_import_in_less_memory_than_it_takes(tmp_path: Path) -> None:
    """In steps on the disk, and the same folder."""
    rows = (f"somebody {n % 90_001}\trelation {n % 7}\tsomebody {n * n % 70_001}\n" for n in range(300_000))
    (tmp_path / "facts.tsv").write_text("".join(rows))
    told = q2p_json("graph", "import", tmp_path / "facts.tsv", "--out", tmp_path / "one")
    assert q2p_json("graph", "import", tmp_path / "facts.tsv", "--memory", "64 MiB", "--out", tmp_path / "two") == told
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two
    done = q2p("graph", "import", tmp_path / "facts.tsv", "--memory", "much", "--out", tmp_path / "one", code=2)
    assert "4GiB" in done.stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("1.5 MiB", 3 << 19), ("500MB", 500_000_000), ("2G", 2 * 10**9), ("64Ki", 65536), ("12B", 12)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_named(text) == size
    for wrong in ("", "GiB", "-1", "1 PB", "4gib"):
        with pytest.raises(UsageError, match="no amount of memory"):
            size_named(wrong)


def test_import_options(tmp_path: Path) -> None:
    (tmp_path / "facts.csv").write_text("when,what,who,whom\n1,knows,ann,bob\n2,knows,bob,ann\n")
    (tmp_path / "labels.tsv").write_text("ann\tAnn of Cleves\n")
    options = (
        "--columns",
        "who,what,whom",
        "--labels",
        tmp_path / "labels.tsv",
        "--name",
        "court",
        "--attribution",
        "me",
    )
    told = q2p_json("graph", "import", tmp_path / "facts.csv", *options, "--out", tmp_path / "graph")
    assert (told["name"], told["about"]["attribution"], told["facts_total"]) == ("court", "me", 2)
    assert q2p_json("answer", tmp_path / "graph", '"Ann of Cleves".knows')["answers"][0]["name"] == "bob"
    q2p("graph", "import", tmp_path / "facts.csv", "--columns", "1,2", "--out", tmp_path / "graph", code=2)
    q2p("graph", "import", tmp_path / "facts.csv", "--split", "half", "--out", tmp_path / "graph", code=2)
    copied = q2p_json("graph", "import", tmp_path / "graph", "--out", tmp_path / "copy")
    for known in (True, False):
        saved = q2p("graph", "import", tmp_path / "graph", "--out", tmp_path / ("copy" if known else "another")).stderr
        assert ("in place of the graph that was there" in saved) == known
    assert copied["fingerprint"] == told["fingerprint"]


def test_wrong_input_says_file_line_and_reason_and_loses_nothing(facts: Path, tmp_path: Path) -> None:
    graph = tmp_path / "graph"
    q2p("graph", "import", facts, "--out", graph)
    before = q2p_json("graph", "info", graph)
    facts.write_text(FACTS + "only\ttwo\n")
    done = q2p("graph", "import", facts, "--out", graph, code=1)
    assert "facts.tsv, line 6" in done.stderr
    assert q2p_json("graph", "info", graph) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["facts.tsv", "graph"]
    done = q2p("graph", "import", graph / "graph.json", "--out", tmp_path / "new", code=2)
    assert "graph.json" in done.stderr
    assert not (tmp_path / "new").exists()


def test_foreign_folders_are_refused_before_any_work(facts: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary.txt").write_text("dear")
    for command in (("graph", "import", facts), ("sample", "atlas", "--count", "2")):
        done = q2p(*command, "--out", tmp_path / "home", code=2)
        assert "diary.txt" in done.stderr
    assert (tmp_path / "home" / "diary.txt").read_text() == "dear"


def test_wrong_calls(tmp_path: Path) -> None:
    assert "q2p graph import" in q2p("answer", tmp_path / "nowhere", "x", code=2).stderr
    q2p("answer", "atlas", "Canada", "-k", "0", code=2)
    q2p("sample", "atlas", "--shapes", "9p", "--out", tmp_path / "set", code=2)
    q2p("data", "check", tmp_path / "nowhere", code=2)
    q2p("bench", "nothing", code=2)
    done = q2p("sample", "atlas", "--shapes", "2p", "--cap", "1", "--count", "99999", "--out", tmp_path / "s", code=1)
    assert "could be grounded" in done.stderr
    assert not (tmp_path / "s").exists()


def test_bench_on_the_embedded_graph() -> None:
    told = q2p_json("bench", "exact", "--count", "50")
    assert told["bench"] == "exact"
    assert set(SHAPES) | {"all"} == set(told["ratios"])
    assert q2p_json("bench", "sample", "--count", "50")["ratios"]["all"] > 0
    told = q2p_json("bench", "import", "--triples", "20000", "--large", "--memory", "64MiB")
    assert told["bench"] == "import-large-0.02-million"  # beside that of the usual size, not in its place
    assert told["figures"]["import seconds"] > 0
    assert "--large" in q2p("bench", "exact", "--large", code=2).stderr
    told = q2p_json("bench", "import", "--triples", "20000")
    assert told["figures"]["open milliseconds"] < 50
    assert told["figures"]["peak memory GiB"] < 4


def test_a_reader_that_leaves_early_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "query2particles", "answer", "atlas", "!Canada.^citizen_of", "-k", "6000", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) in (0, 1)  # it may have said everything before


def test_completion_is_offered() -> None:
    assert "--install-completion" in q2p("--help").stdout


def test_sampling_again_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "set"
    draw = ("sample", "atlas", "--shapes", "2p", "--out", out)
    q2p(*draw, "--count", "5")
    assert "has test-2p already" in q2p(*draw, "--count", "3", "--seed", "7", code=2).stderr
    assert q2p_json("data", "check", out, "--graph", "atlas")["verified_queries"] == 5
    q2p(*draw, "--count", "3", "--seed", "7", "--replace")
    assert q2p_json("data", "check", out, "--graph", "atlas")["verified_queries"] == 3


def test_allow_fewer_writes_what_there_is(facts: Path, tmp_path: Path) -> None:
    q2p("graph", "import", facts, "--out", tmp_path / "graph")
    draw = ("sample", tmp_path / "graph", "--split", "train", "--count", "300", "--allow-fewer")
    drawn = q2p_json(*draw, "--shapes", "2p,3i", "--out", tmp_path / "set")
    assert drawn["shapes"][0]["queries"] > 0
    assert q2p_json("data", "check", tmp_path / "set", "--graph", tmp_path / "graph")["problems"] == 0
    assert "no test facts" in q2p("sample", tmp_path / "graph", "--out", tmp_path / "other", code=1).stderr


def test_a_graph_is_copied_with_another_name(facts: Path, tmp_path: Path) -> None:
    q2p("graph", "import", facts, "--out", tmp_path / "one")
    copied = q2p_json(
        "graph", "import", tmp_path / "one", "--name", "two", "--attribution", "me", "--out", tmp_path / "two"
    )
    assert (copied["name"], copied["about"]["attribution"]) == ("two", "me")
    done = q2p("graph", "import", tmp_path / "one", "--split", "0.1,0.1", "--out", tmp_path / "three", code=2)
    assert "is a graph already" in done.stderr


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "evil.tsv").write_text("a\x1b[31mred\tlikes\tb\n")
    shown = q2p("graph", "import", tmp_path / "evil.tsv", "--out", tmp_path / "graph")
    shown.stdout += q2p("answer", tmp_path / "graph", "b.^likes").stdout
    assert "a·[31mred" in shown.stdout
    assert "\x1b" not in shown.stdout + shown.stderr
    refused = q2p("answer", tmp_path / "no\x1b[31msuch", "b.^likes", code=2)
    assert "no·[31msuch" in refused.stderr
    assert "\x1b" not in refused.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_any_terminal_can_show_it(encoding: str) -> None:
    for options in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "query2particles", "answer", "atlas", "Brazil.^in_country", "-k", "300", *options],
            env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert not options or json.loads(done.stdout.decode(encoding))["total"] > 200


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    for options in ([], ["--json"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "query2particles", "answer", "atlas", "Canada", *options],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 1
        assert done.stderr == "error: No space left on device; nothing that was there before is lost\n"


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    """The call is wrong, and is told so before the work."""
    (tmp_path / "file").write_text("")
    for place in ("/proc/nowhere", tmp_path / "file" / "sub"):
        done = q2p("sample", "atlas", "--count", "2", "--shapes", "2p", "--out", place, code=2)
        assert f"error: {place} cannot be written" in done.stderr


def test_wrong_calls_of_bench_and_convert(tmp_path: Path) -> None:
    assert "FB15k-237" in q2p("bench", "exact", "--data", tmp_path, code=2).stderr
    (tmp_path / "results").mkdir()
    assert "no results" in q2p("report", "--results", tmp_path / "results", "--docs", tmp_path, code=2).stderr
    (tmp_path / "results" / "bench-exact.json").write_text("{}")
    assert "measure again" in q2p("report", "--results", tmp_path / "results", "--docs", tmp_path, code=2).stderr
    assert "no queries" in q2p("data", "convert", "atlas", "--out", tmp_path / "set", code=2).stderr


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    command = ["sample", "atlas", "--shapes", "3i", "--count", "500000", "--out", str(tmp_path / "set")]
    # A shell starts what runs in the background deaf to Ctrl-C, and so would be what these tests start: hear again.
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from query2particles.cli import main; print('begins', flush=True); main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told.strip()) == (130, "interrupted; nothing was changed")
    assert list(tmp_path.iterdir()) == []
