"""A synthetic power-law graph as a TSV file: `python benchmarks/power_law_graph.py FILE [--entities N] …`

Without sizes it is as large as Freebase. Memory stays at some 300 MB, whatever the size.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from query2particles.bench.synthetic import FREEBASE, write_power_law_graph
from query2particles.files import new_file
from query2particles.show import progress_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a synthetic power-law graph as triples.")
    parser.add_argument("file", type=Path, help="the TSV file to write")
    for name, size in zip(("entities", "relations", "edges"), FREEBASE, strict=True):
        parser.add_argument(f"--{name}", type=int, default=size, help=f"how many (default: {size:,})")
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    with new_file(told.file) as partial, progress_bytes("writing") as progress:
        write_power_law_graph(partial, told.entities, told.relations, told.edges, seed=told.seed, progress=progress)


if __name__ == "__main__":
    main()
