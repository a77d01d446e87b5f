"""What an engine may tell of its start, and do once it serves: an optional part of the engine port.

Optional, since users bring engines of their own: one that has none of this is started and watched all the same.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ebbtide.client.messages import RankLoad
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide_serve.loading.start_record import OWN


@dataclass(frozen=True, slots=True)
class StartReport:
    """Where a start's time went.

    Attributes:
        stages_s: seconds by stage, in order: process, weights, compile, warm-up.
        loads: how each rank got its weights.
    """

    stages_s: Mapping[str, float] = field(default_factory=dict)
    loads: tuple[RankLoad, ...] = ()


@runtime_checkable
class TellsOfItsStart(Protocol):
    """An engine with this part."""

    def start_report(self) -> StartReport:
        """Of the start that has ended."""

    async def settle(self, store: ObjectStore) -> str:
        """Do what can wait until it serves, such as publishing what the next start will want.

        Returns:
            What was done, or why nothing, for the log.
        """


def sound(told: StartReport) -> StartReport:
    """The same in the types that it should have; empty if it cannot be read so.

    Engines are anybody's, and what they tell goes into the pool's ledger, which takes no NaN.
    """
    try:
        stages_s = {str(stage): _seconds(seconds) for stage, seconds in told.stages_s.items()}
        loads = tuple(
            RankLoad(
                rank=int(load.rank),
                way=str(load.way),
                bytes_by_mode={str(mode): int(size) for mode, size in load.bytes_by_mode.items()},
                seconds=_seconds(load.seconds),
                why=tuple(map(str, load.why)),
            )
            for load in told.loads
        )
    except (AttributeError, TypeError, ValueError, OverflowError):
        return StartReport()
    return StartReport(stages_s, loads)


def _seconds(value: float) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{value} is no number of seconds")
    return seconds


def stages_of(records: list[dict[str, Any]], began_s: float, ready_s: float) -> dict[str, float]:
    """Stages of a start by the moments of all ranks (see ``loading.start_record``), the latest counting for each.

    Args:
        records: of the ranks.
        began_s, ready_s: when the engine was started and when it answered, by CLOCK_MONOTONIC.

    Returns:
        Nothing if a rank does not know its moments.
    """
    stages, before_s = {}, began_s
    for stage, moment in (("process", "device"), ("weights", "weights_done"), ("compile", "compile_done")):
        reached = [record["moments_s"].get(moment) for record in records]
        if not reached or None in reached:
            return {}
        stages[stage] = max(0.0, max(reached) - before_s)
        before_s = max(before_s, *reached)
    return stages | {"warm-up": max(0.0, ready_s - before_s)}


def loads_of(records: list[dict[str, Any]], why_own: str = "") -> tuple[RankLoad, ...]:
    """What the ranks tell of their weights.

    Args:
        records: of the ranks; one whose engine read in its own way knows nothing of it.
        why_own: why it did, if that was to be so.
    """
    return tuple(
        RankLoad(
            rank=int(record["rank"]),
            way=str(record["used"]) or OWN,
            bytes_by_mode=dict(record["bytes_by_mode"]),
            seconds=float(record["seconds"]),
            why=tuple(record["reasons"]) or tuple(filter(None, [record["why_not_better"] or why_own])),
        )
        for record in records
    )
