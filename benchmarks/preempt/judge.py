"""Rows and bars of one size. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.preempt.contest import CRIU, EVICTION, OURS, RESTART, Contest, after_kill
from benchmarks.preempt.events import SPANS
from benchmarks.preempt.evictions import (
    EVICT,
    FRESH_SHARE,
    INTO_FRESH,
    MEMCPY,
    RESTORE,
    SHARE,
    SPEED,
    WITH_TRIM,
)
from benchmarks.preempt.savers import DCP, DCP_ASYNC, SAVERS
from benchmarks.record import Gap
from benchmarks.rows import Bar, Row, row

GOALS = {
    "evict_vs_memcpy": ">= 0.8 of memcpy",
    "restore_vs_memcpy": ">= 0.8 of memcpy",
    "free_vs_dcp_save": ">= 5 x sooner, from the safe point on",
    "free_vs_dcp_async": ">= 1: no later than its staging, from the safe point on",
    "resume_vs_restart": ">= 10 x sooner than the best of the restarts",
}
LEAST = {
    "evict_vs_memcpy": 0.8,
    "restore_vs_memcpy": 0.8,
    "free_vs_dcp_save": 5.0,
    "free_vs_dcp_async": 1.0,
    "resume_vs_restart": 10.0,
}
TO_FREE, TO_STAGED, RESUME = "safe point to slot free", "safe point to staged", "resume"
# Where the whole state goes to storage in this span, it has a speed, and that a share of the ceiling.
WRITES = {OURS: "slot free to durable", RESTART: "safe point to durable", CRIU: "safe point to durable"} | {
    after_kill(name): "safe point to durable" for name in SAVERS
}


def rows_of(contest: Contest) -> list[Row]:
    """All spans in seconds, speeds in GB/s and as shares of what memory and storage can do."""
    rows = []
    if contest.ceilings:
        rows.append(row("storage, fio", SPEED, "GB/s", [one.gb_per_s for one in contest.ceilings]))
    eviction = contest.series[EVICTION]
    for name, unit in _figures():
        if values := eviction.figures(name):
            rows.append(row(EVICTION, name, unit, values))
    for name, series in contest.series.items():
        for span in SPANS:
            if values := series.spans(span):
                rows.append(row(name, span, "s", values))
        speeds = [contest.size_bytes / seconds / 1e9 for seconds in series.spans(WRITES.get(name, ""))]
        if speeds:
            rows.append(row(name, "written", "GB/s", speeds))
            rows += _share_of_storage(name, speeds, contest)
    return rows


def bars_of(contest: Contest) -> list[Bar]:
    """What the issue asks for."""
    eviction, ours = contest.series[EVICTION], contest.series[OURS]

    def spans(contender: str, span: str) -> list[float]:
        return contest.series[contender].spans(span)

    restarts = [spans(after_kill(name), RESUME) for name in SAVERS]
    best = min((median(values) for values in restarts if values), default=None)
    values = {
        "evict_vs_memcpy": _median(eviction.figures(f"{EVICT}, {SHARE}")),
        "restore_vs_memcpy": _median(eviction.figures(f"{RESTORE}, {SHARE}")),
        "free_vs_dcp_save": _times(_median(spans(after_kill(DCP), TO_FREE)), ours.spans(TO_FREE)),
        "free_vs_dcp_async": _times(_median(spans(after_kill(DCP_ASYNC), TO_STAGED)), ours.spans(TO_FREE)),
        "resume_vs_restart": _times(best, ours.spans(RESUME)),
    }
    return [_bar(name, value) for name, value in values.items()]


def gaps_of(contest: Contest, missing: Mapping[str, str]) -> list[Gap]:
    """Contenders that failed, and what could not be measured here, by what and why."""
    gaps = [Gap(name, "all", series.failed) for name, series in contest.series.items() if series.failed]
    return gaps + [Gap(name, "all", why) for name, why in missing.items()]


def _bar(name: str, value: float | None) -> Bar:
    if value is None:
        return Bar(name, "what it is compared with, or we ourselves, could not be measured", None, False)
    return Bar(name, GOALS[name], round(value, 3), value >= LEAST[name])


def _times(theirs: float | None, ours: Sequence[float]) -> float | None:
    """How many times sooner we are, by medians."""
    return None if theirs is None or not ours else theirs / median(ours)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _figures() -> list[tuple[str, str]]:
    """Of eviction alone; its share of memcpy into fresh pages too, which is the limit of what comes back."""
    moves = (EVICT, WITH_TRIM, RESTORE)
    found = [(f"{name}, {SPEED}", "GB/s") for name in (MEMCPY, INTO_FRESH, *moves)]
    found += [(f"{move}, {SHARE}", "ratio") for move in moves]
    return [*found, (f"{RESTORE}, {FRESH_SHARE}", "ratio")]


def _share_of_storage(name: str, speeds: Sequence[float], contest: Contest) -> list[Row]:
    if len(speeds) != len(contest.ceilings):
        return []
    shares = [speed / one.gb_per_s for speed, one in zip(speeds, contest.ceilings, strict=True)]
    return [row(name, "written, to the storage's ceiling", "ratio", shares)]
