"""Every generated page and picture, written together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from query2particles.files import new_file
from query2particles.plot import plot_growth, plot_particles
from query2particles.report.documents import read_results
from query2particles.report.growth import GROWTH_FIGURE, measured_growth
from query2particles.report.results import has_results, results_page, with_results
from query2particles.report.speed import speed_page
from query2particles.report.studies import PARTICLES_FIGURE, particle_curves
from query2particles.report.trials import trials_page

__all__ = ["write_report"]


def write_report(results: Path, docs: Path) -> list[Path]:
    """Write them; return their paths. Where one cannot be made, none is written."""
    pages: dict[str, Callable[[Path], str]] = {"speed.md": speed_page, "results.md": results_page}
    texts = {docs / name: page(results) for name, page in pages.items()}
    growth = measured_growth(results)
    trials = results.parent / "trials"
    if trials.is_dir():
        texts[docs / "trials.md"] = trials_page(trials)
    readme = docs.parent / "README.md"
    if readme.is_file() and has_results(text := readme.read_text("utf-8")):
        texts[readme] = with_results(text, results)
    for path, text in texts.items():
        with new_file(path) as partial:
            partial.write_text(text, "utf-8")
    written = list(texts)
    if curves := particle_curves(read_results(results)):
        plot_particles(curves, docs / PARTICLES_FIGURE)
        written.append(docs / PARTICLES_FIGURE)
    if growth:
        plot_growth(growth, docs / GROWTH_FIGURE, caption="Machines and settings: the pages of speed and large graphs")
        written.append(docs / GROWTH_FIGURE)
    return written
