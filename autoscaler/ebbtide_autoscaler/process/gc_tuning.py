"""How often a process that decides looks for garbage in cycles.

A pool of 10,000 slots is a million objects that stay, and a tick makes tens of thousands of new ones, nearly none of
them in cycles: by Python's own thresholds every tenth tick or so waits for a full collection (measured at 10,000 slots
and 2,000 workloads, one of two shared CPU cores: p99 of ``decide`` 75 ms with them, 25 ms without).
"""

import gc

YOUNG = 50_000  # objects between two looks at the youngest: more than a tick at 10,000 slots leaves; Python's own: 700
MIDDLE, OLD = 20, 100  # looks at one generation before the next older one is looked at; Python's own: 10 and 10


def collect_seldom() -> None:
    """Leave what is there already out of collections for good, and look at the rest seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
