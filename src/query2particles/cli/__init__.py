"""The command `q2p`: parses, calls a verb, prints.

Everything heavy is imported inside the commands, so that `q2p --help` answers at once.
"""

# isort: off
# Commands are listed in this order.
from query2particles.cli import (
    answers,
    shell,
    serving,
    queries,
    training,
    joining,
    tuning,
    reasoning,
    indexing,
    evaluating,
    methods,
    results,
)

# isort: on
from query2particles.cli.benches import bench_app
from query2particles.cli.graphs import graph_app
from query2particles.cli.queries import data_app
from query2particles.cli.root import app, main

__all__ = [
    "answers",
    "app",
    "evaluating",
    "indexing",
    "joining",
    "main",
    "methods",
    "queries",
    "reasoning",
    "results",
    "serving",
    "shell",
    "training",
    "tuning",
]

app.add_typer(bench_app, name="bench")
app.add_typer(graph_app, name="graph")
app.add_typer(data_app, name="data")
