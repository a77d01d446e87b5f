"""The windows of the trace that are replayed against a live pool, each with a tide of its own.

As in the demo, what is scripted is the tide, since an hour of the trace has none; arrivals within a phase and lengths
are the trace's. No two windows have requests, phases or rates in common: what is calibrated on one is checked on
others. Rates stay below what two replicas on two cores answer, so that most users do not stand in a line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.demo.traffic import Phase


@dataclass(frozen=True, slots=True)
class Window:
    """Requests of the trace from number ``first`` on, and the tide that they make."""

    first: int
    phases: Sequence[Phase]


SPAN_S = 270.0  # scored of each run, from the first phase on: the last phase, its drain and the job's growth are in it

CALIBRATION = "calibration"
REPEATED = "two-waves"  # runs twice
WINDOWS: Mapping[str, Window] = {
    # As the demo's tide: a small wave, for which the job parks in place; then one for which it restarts, twice.
    CALIBRATION: Window(
        0,
        (Phase(0.0, 12.0, 0.5), Phase(75.0, 60.0, 0.6), Phase(135.0, 60.0, 2.5)),
    ),
    # The flood comes first, and a small wave after it.
    "flood-first": Window(
        5000,
        (Phase(0.0, 30.0, 0.6), Phase(30.0, 70.0, 2.5), Phase(170.0, 15.0, 0.6)),
    ),
    # Two waves that rise and fall.
    "two-waves": Window(
        10000,
        (
            Phase(0.0, 25.0, 1.0),
            Phase(80.0, 40.0, 1.0),
            Phase(120.0, 40.0, 5.0),
            Phase(160.0, 35.0, 1.0),
        ),
    ),
}
