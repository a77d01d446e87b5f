"""Who really had memory on which GPU: read from the occupants' own allocation logs, never from the ledger.

Each occupant writes ``acquired``, then ``holding`` ten times a second, then ``released``; one that was killed ends
with its last ``holding``.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stay:
    """One occupant's time on a slot, in CLOCK_BOOTTIME seconds."""

    slot: str
    workload: str
    epoch: int
    pid: int
    start_s: float
    end_s: float


def read_stays(log_dir: Path) -> list[Stay]:
    """All stays in the logs of ``log_dir``."""
    stays: list[Stay] = []
    for path in sorted(log_dir.glob("*.jsonl")):
        open_stay: dict[tuple[str, int], Stay] = {}
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the last line of a killed process
            key = (str(row["slot"]), int(row["epoch"]))
            at_s = float(row["t"])
            if row["event"] == "acquired":
                open_stay[key] = Stay(key[0], str(row["workload"]), key[1], int(row["pid"]), at_s, at_s)
            elif key in open_stay:
                stay = open_stay[key]
                open_stay[key] = Stay(stay.slot, stay.workload, stay.epoch, stay.pid, stay.start_s, at_s)
            if row["event"] == "released" and key in open_stay:
                stays.append(open_stay.pop(key))
        stays += open_stay.values()
    return stays


def double_occupancy_s(stays: Sequence[Stay]) -> float:
    """Seconds during which a slot had two occupants, summed over slots."""
    by_slot: dict[str, list[Stay]] = defaultdict(list)
    for stay in stays:
        by_slot[stay.slot].append(stay)
    total_s = 0.0
    for on_slot in by_slot.values():
        edges = sorted([(stay.start_s, 1) for stay in on_slot] + [(stay.end_s, -1) for stay in on_slot])
        present, since_s = 0, 0.0
        for at_s, change in edges:
            if present > 1:
                total_s += at_s - since_s
            present += change
            since_s = at_s
    return total_s
