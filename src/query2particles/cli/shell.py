"""`q2p shell`: ask again and again, with history and completion of names."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from query2particles.cli.indexing import ClusterSize, DegradedName, SearchBy, SearchName, WhenDegraded, searching
from query2particles.cli.root import SplitName, app, split_of
from query2particles.errors import Query2ParticlesError, UsageError

if TYPE_CHECKING:
    from query2particles.answer import Answers, Question, Reasoner
    from query2particles.graph.graph import Graph

__all__ = ["Shell", "completions", "history_file", "shell"]

_PROMPT = "q2p> "
_OFFERED = 50
"""Names that a completion offers, at most."""

_REMEMBERED = 1000
"""Lines of history."""

_DELIMITERS = " \t\n.&|!^()<>\"',"
"""What a name ends at outside quotes."""

_PLAIN = re.compile(r"(?![\[?#:-])[^\s.&|!^()\"<>\\,']+")
"""Names that need no quotes in any syntax."""

_HELP = """\
QUERY           a question in any of the syntaxes; Tab completes names
:explain N      the facts behind the N-th answer
:k N            how many answers to name
:method NAME    exact, neural or both; of a joined run also best or fast
:only NAME      known or predicted answers; `all` shows both again
:guesses NAME   always: also where the known answers look complete; `auto` folds them away there
:save FILE      write the last answers to a new file, as JSON
:help           this
:quit           leave (also Ctrl-D)"""


@app.command()
def shell(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN|GRAPH", help="A run folder; or a graph folder, a benchmark folder, or `atlas`."),
    ],
    split: Annotated[
        SplitName, typer.Option(help="The facts to use: those of train, train + valid, or all.")
    ] = SplitName.test,
    graph: Annotated[str | None, typer.Option(help="The run's graph, where it is no longer where it was.")] = None,
    search: SearchBy = SearchName.auto,
    cluster: ClusterSize = 0,
    degraded: WhenDegraded = DegradedName.refuse,
) -> None:
    """Ask again and again, with history, completion of names and the facts behind answers."""
    from query2particles.answer import Question, Reasoner
    from query2particles.show import note

    reasoner = Reasoner.open(source, graph=graph, split=split_of(split), searching=searching(search, cluster, degraded))
    asking = Shell(reasoner, Question("", method="both" if reasoner.model is not None else "exact"))
    if not sys.stdin.isatty():
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a line that is not UTF-8 is wrong, not the lines after it
        failed = [line for line in sys.stdin if not asking.closed and not asking.hear(line)]
        if failed:
            raise typer.Exit(1)
        return
    note(f"{reasoner.graph.name}: {len(reasoner.graph.entities):,} entities. Ask, or say :help; Ctrl-D leaves.")
    with _line_editing(reasoner.graph):
        while not asking.closed:
            try:
                asking.hear(input(_PROMPT))
            except EOFError:
                typer.echo()
                return
            except KeyboardInterrupt:  # the line is given up, not the shell
                typer.echo()


@dataclass
class Shell:
    """What was said so far: how to answer, and the last answers."""

    reasoner: Reasoner
    question: Question
    """How the next one is asked; its text does not matter."""
    last: Answers | None = None
    closed: bool = False

    def hear(self, line: str) -> bool:
        """Do what a line says; whether that went well. Errors are told, not raised."""
        line = line.strip()
        if not line or line.startswith("#"):
            return True
        from query2particles.show import note

        try:
            if line.startswith(":"):
                word, _, rest = line[1:].partition(" ")
                self._command(word)(self, rest.strip())
            else:
                self._ask(line)
        except Query2ParticlesError as error:
            note(f"error: {error}" + ("; to leave: :quit, or Ctrl-D" if line in ("exit", "quit") else ""))
            return False
        except OSError as error:
            note(f"error: {error.filename or ''}: {error.strerror or error}")
            return False
        return True

    def _ask(self, text: str) -> None:
        from query2particles.show import print_answered

        self.last = None  # what is explained or saved next is never another question's
        self.last = self.reasoner.answer(replace(self.question, text=text))
        print_answered(self.last, unfold=":guesses always")

    def _explain(self, number: str) -> None:
        from query2particles.show import print_evidence

        answered = self._answered()
        place = _whole_number(number, ":explain takes the number of an answer")
        if not place <= len(answered.answers):
            raise UsageError(f"there is no answer {place}: the last question has {len(answered.answers)} here")
        print_evidence(self.reasoner.explain(answered.query, answered.answers[place - 1].entity_id))

    def _k(self, number: str) -> None:
        self.question = replace(self.question, k=_whole_number(number, ":k takes how many answers to name"))

    def _method(self, name: str) -> None:
        from query2particles.answer import Method

        if name not in get_args(Method):
            raise UsageError(f":method takes one of {', '.join(get_args(Method))}; it is {self.question.method} now")
        if self.reasoner.model is None and name != "exact":
            raise UsageError("a graph alone has exact answers only; start q2p shell with a run")
        changed: Any = name
        self.question = replace(self.question, method=changed)

    def _only(self, name: str) -> None:
        if name not in ("known", "predicted", "all"):
            raise UsageError(f":only takes known, predicted or all; it is {self.question.only or 'all'} now")
        changed: Any = None if name == "all" else name
        self.question = replace(self.question, only=changed)

    def _guesses(self, name: str) -> None:
        from query2particles.answer import Guesses

        if name not in get_args(Guesses):
            raise UsageError(f":guesses takes one of {', '.join(get_args(Guesses))}; it is {self.question.guesses} now")
        changed: Any = name
        self.question = replace(self.question, guesses=changed)

    def _save(self, name: str) -> None:
        from query2particles.files import write_json
        from query2particles.show import note

        if not name or "\0" in name:
            raise UsageError(":save takes the name of a new file")
        try:
            target = Path(name).expanduser()
        except RuntimeError:
            raise UsageError(f"nobody's home is {name.partition('/')[0]}; name the file in full") from None
        if target.exists():
            raise UsageError(f":save takes the name of a new file; {name} exists")
        write_json(target, self._answered().as_json())
        note(f"Saved in {target}.")

    def _help(self, _: str) -> None:
        typer.echo(_HELP)

    def _quit(self, _: str) -> None:
        self.closed = True

    def _answered(self) -> Answers:
        if self.last is None:
            raise UsageError("there are no answers yet; ask something first")
        return self.last

    @staticmethod
    def _command(word: str) -> Callable[[Shell, str], None]:
        if word not in _COMMANDS:
            known = ", ".join(f":{name}" for name in _COMMANDS)
            raise UsageError(f"there is no command :{word}; there are {known}")
        return _COMMANDS[word]


_COMMANDS: Mapping[str, Callable[[Shell, str], None]] = MappingProxyType(
    {
        "explain": Shell._explain,
        "k": Shell._k,
        "method": Shell._method,
        "only": Shell._only,
        "guesses": Shell._guesses,
        "save": Shell._save,
        "help": Shell._help,
        "quit": Shell._quit,
    }
)
_CHOICES = {
    "method": ("exact", "neural", "both", "best", "fast"),
    "only": ("known", "predicted", "all"),
    "guesses": ("auto", "always"),
}


def _whole_number(text: str, otherwise: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise UsageError(f"{otherwise}, from 1 on")
    return int(text)


def completions(graph: Graph, line: str, begin: int) -> list[str]:
    """What may stand in place of `line[begin:]`, of a line that ends at the cursor: names, commands, their choices."""
    from query2particles.query.grammar import quoted, unquoted

    if line.startswith(":"):
        word, space, _ = line[1:].partition(" ")
        if not space:
            return [f":{name} " for name in _COMMANDS if f":{name}".startswith(line)]
        return [choice for choice in _CHOICES.get(word, ()) if choice.startswith(line[begin:])]
    quote = _open_quote(line)
    start = quote + 1 if quote is not None else begin
    after_dot = re.search(r"\.\s*\^?\s*$", line[: quote if quote is not None else begin])
    vocabularies = (graph.relations,) if after_dot else (graph.entities, graph.relations)
    typed = line[start:] if quote is None else unquoted(f'{line[quote:]}"')
    found = []
    for vocabulary in vocabularies:
        for index in vocabulary.starting_with(typed, _OFFERED):
            name = vocabulary.name(index)
            found.append(name if name.startswith(typed) else vocabulary.label(index))
    if quote is not None:
        # What stands before `begin` stays: readline takes a space for the start of a new word.
        return [quoted(name)[1 + begin - start :] for name in dict.fromkeys(found)]
    return [name if _PLAIN.fullmatch(name) else quoted(name) for name in dict.fromkeys(found)]


def _open_quote(line: str) -> int | None:
    """Where the quote stands in which the line ends."""
    opened = None
    escaped = False
    for place, character in enumerate(line):
        if character == '"' and not escaped:
            opened = place if opened is None else None
        escaped = character == "\\" and not escaped and opened is not None
    return opened


def history_file() -> Path | None:
    """Where the lines of earlier sessions are, in the user's folder for such things; None where nobody has one."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:  # an account without a home
        return None
    return folder / "query2particles" / "history"


@contextlib.contextmanager
def _line_editing(graph: Graph) -> Iterator[None]:
    """History and completion, where Python has readline; without, lines can be asked all the same."""
    try:
        import readline
    except ImportError:
        yield
        return
    offered: Sequence[str] = ()

    def complete(_: str, number: int) -> str | None:
        nonlocal offered
        if number == 0:
            line = readline.get_line_buffer()[: readline.get_endidx()]
            offered = completions(graph, line, readline.get_begidx())
        return offered[number] if number < len(offered) else None

    readline.set_completer(complete)
    readline.set_completer_delims(_DELIMITERS)
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(_REMEMBERED)
    history = history_file()
    if history is None:
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # no history is no reason to fail
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)
