"""Pages made from committed results: no figure is typed by hand.

    results.md      every method on every set, what was varied of Query2Particles, what each training has cost
    speed.md        what `q2p bench` has measured
    trials.md       trials of settings
    README.md       its table of averages

`studies` and `spreads` make sections of the first, `costs` its last.
"""

from query2particles.report.pages import write_report
from query2particles.report.results import results_page, with_results
from query2particles.report.speed import method_times, speed_page, time_tables
from query2particles.report.trials import trials_page

__all__ = ["method_times", "results_page", "speed_page", "time_tables", "trials_page", "with_results", "write_report"]
