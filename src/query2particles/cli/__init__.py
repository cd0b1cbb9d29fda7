"""The command `q2p`: parses, calls a verb, prints.

Everything heavy is imported inside the commands, so that `q2p --help` answers at once.
"""

from query2particles.cli import answers, benches, queries, training  # each registers its commands
from query2particles.cli.graphs import graph_app
from query2particles.cli.queries import data_app
from query2particles.cli.root import app, main

__all__ = ["answers", "app", "benches", "main", "queries", "training"]

app.add_typer(graph_app, name="graph")
app.add_typer(data_app, name="data")
