"""From scores to probabilities that mean what they say, learned from natural questions (docs/answering.md)."""

from query2particles.calibration.additive import Additive
from query2particles.calibration.calibration import POOL, Calibration, Judge
from query2particles.calibration.fitting import calibrate, questions_for
from query2particles.calibration.rates import Rates
from query2particles.calibration.reliability import Figures, Judged, expected_calibration_error, plot_reliability
from query2particles.calibration.storing import read_calibration, save_calibration, weights_digest
from query2particles.run import CALIBRATION, RELIABILITY

__all__ = [
    "CALIBRATION",
    "POOL",
    "RELIABILITY",
    "Additive",
    "Calibration",
    "Figures",
    "Judge",
    "Judged",
    "Rates",
    "calibrate",
    "expected_calibration_error",
    "plot_reliability",
    "questions_for",
    "read_calibration",
    "save_calibration",
    "weights_digest",
]
