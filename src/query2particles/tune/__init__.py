"""Settings by search:  points of a space ▶ short trainings ▶ the better ones, longer ▶ best.toml.

Successive halving: every trial, a random point of the space, is trained for a few updates; of `eta` trials the best one
is trained for `eta` times as many, and so on up to the full number. What is better is what training itself selects
weights by: the mean MRR of its validation. Test queries are never looked at.

Each rung trains afresh, a whole training in small: schedule and warm-up shrink with its updates. Going on from the rung
before would save one update of `eta` at most, and only a constant rate can be prolonged; but a rate that is best while
it stays is lower than the one that is best when it falls to zero. So a rung ranks what `q2p train` would make of so
many updates, and the last one is what it makes of best.toml, exactly.

    search.json     the plan; another one is refused
    trials.jsonl    a line for each training that has ended, with what it gave
    runs/           their run folders, NUMBER-UPDATES; the best alone keeps its weights
    claims/         locks: who holds one trains that run; it goes with its process
    best.toml       the settings found, for q2p train --config

Any number of processes may work in one such folder. Whoever finds a run that is neither over nor held trains it, from
its last save where there is one; where all are held, it waits for the next rung.
"""

from query2particles.tune.plan import ETA, PAPER_GRID, SPACE, TRIALS, Outcome, Plan, planned
from query2particles.tune.search import BEST, RUNS, Tuned, tune

__all__ = ["BEST", "ETA", "PAPER_GRID", "RUNS", "SPACE", "TRIALS", "Outcome", "Plan", "Tuned", "planned", "tune"]
