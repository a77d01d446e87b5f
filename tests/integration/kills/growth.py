"""Does something grow? Samples over time, a slope that outliers do not move, and a stated bound for each series. Pure.

The slope is that of Theil and Sen: the median of the slopes between all pairs of samples. Pairs are of one process
only, or its death would hide its growth: a series is judged by the pairs of all its processes together, and each
process also by itself. One that lived for a short time counts by itself only as far as nine in ten of its pairs rise:
with a tide every other minute, descriptors go up and down in ten minutes by more than a leak would show. What outlives
processes (files, totals) has one series for the whole run. The first minutes are left out: caches fill, allocators
reach their working size.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

WARM_UP_MIN = 8.0  # of the run: imports, first replicas and first checkpoints of every kind are behind us by then
SETTLED_MIN = 3.0  # of one process's life: RSS of a new Ray worker rises for a minute or two
# A new GCS fills its tables (1,000 tasks and 200 dead actors, see ``cluster``) and keeps connections to the dead for a
# while. In three lives of 14 to 18 minutes it went from 50 or 55 to 66 MB within three minutes, to 74 within eight or
# nine, and stayed between 74 and 78 from then on; its descriptors likewise (2026-11-22). In a soak it must live for
# longer than that, or the soak is not clean.
# A new Serve controller goes from 205 to 212 MB within eight minutes, whatever it does, and by 0.3 MB a minute from
# then on: seven lives in one soak (2026-11-23, seed 444093); one ended after nine minutes and was taken to grow.
SETTLED_MIN_OF = {"gcs": 8.0, "serve_controller": 8.0}
SAMPLES_MIN = 6  # of one process; fewer say nothing about a slope
# A gateway's connections come and go with the traffic: one had 60 descriptors at rest, 61 to 187 in the midst of a
# flood, and 60 again after an hour (2026-11-22, seed 204), which by each minute's sample was a growth of 10 an hour.
# What leaks stays; so these are judged by the least of five minutes.
FLOOR_OF = {"fds:gateway": 5}
LONG_LIFE = 20  # samples of one process, several tides: by so many it is judged like the whole


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure at one time."""

    at_min: float  # since the run began
    series: str  # "rss_mb:arbiter"
    instance: str  # which process, or "" for what there is one of
    value: float


@dataclass(frozen=True, slots=True)
class Bound:
    """How fast a series may grow per hour, and why that much."""

    per_hour: float
    reason: str


BOUNDS: Mapping[str, Bound] = {
    "rss_mb": Bound(
        40.0, "glibc's arenas and Ray's task event buffers settle slowly; a leak per request or tick is more"
    ),
    "fds": Bound(
        6.0,
        "without connections between processes that live (``descriptors``); those to processes that went are closed "
        "with a delay; a leak per kill is 60 and more",
    ),
    "ledger_mb": Bound(64.0, "old epochs are kept within the ledger's own budget before they are removed"),
    "shared_mb": Bound(
        112.0,
        "within an hour the step logs only grow, up to their own bound: 20 steps/s x 4 ranks x 150 B = 43 MB/h; the "
        "rest is what the ledger keeps",
    ),
    "checkpoints_mb": Bound(8.0, "old checkpoints are removed when a newer one is published"),
    "runtime_files": Bound(6.0, "the pool's node-local folder has one file per slot and a few more"),
    "tmp_files": Bound(1.0, "names of ours in the temp directory: what a run leaves there, it leaves for ever"),
    "session_mb": Bound(
        400.0, "Ray logs of all workers, old and new: about 100 kB each, thousands in an hour of kills"
    ),
    "processes": Bound(4.0, "a killed process is replaced, not joined; counted where a round has come to rest"),
}
"""By the first part of a series' name."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One series, judged."""

    series: str
    slope_per_hour: float
    bound_per_hour: float
    instances: int  # judged ones
    first: float  # of the longest life
    last: float

    @property
    def grows(self) -> bool:
        """Beyond its bound."""
        return self.slope_per_hour > self.bound_per_hour


def slope(*lives: Sequence[tuple[float, float]]) -> float:
    """Theil's and Sen's slope of the (x, y) of each life, in y per x; 0.0 for fewer than two different x."""
    slopes = [one for points in lives for one in _pairs(points)]
    return median(slopes) if slopes else 0.0


def sure_slope(points: Sequence[tuple[float, float]]) -> float:
    """What nine in ten pairs rise by at least."""
    slopes = sorted(_pairs(points))
    return slopes[len(slopes) // 10] if slopes else 0.0


def floors(points: Sequence[tuple[float, float]], width: int) -> list[tuple[float, float]]:
    """Of each run of ``width`` points the lowest value, at the run's first time."""
    runs = [points[at : at + width] for at in range(max(1, len(points) - width + 1))]
    return [(run[0][0], min(value for _, value in run)) for run in runs]


def _pairs(points: Sequence[tuple[float, float]]) -> list[float]:
    return [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 != x1]


def verdicts(samples: Iterable[Sample], *, warm_up_min: float = WARM_UP_MIN) -> list[Verdict]:
    """Each series by what grows fastest: all its instances together, or one of them."""
    by_series: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for one in samples:
        by_series.setdefault(one.series, {}).setdefault(one.instance, []).append((one.at_min, one.value))
    found = []
    for series, instances in sorted(by_series.items()):
        kind, _, role = series.partition(":")
        bound, settled_min = BOUNDS[kind], SETTLED_MIN_OF.get(role, SETTLED_MIN)
        judged = {}
        for name, points in instances.items():
            born_min = points[0][0] + (settled_min if name else 0.0)
            settled = [point for point in points if point[0] >= max(warm_up_min, born_min)]
            if len(settled) >= SAMPLES_MIN:
                judged[name] = floors(settled, FLOOR_OF.get(series, 1))
        if not judged:
            continue
        lives = list(judged.values())
        slopes = [slope(*lives), *(slope(one) if len(one) >= LONG_LIFE else sure_slope(one) for one in lives)]
        longest = max(lives, key=len)
        first, last = round(longest[0][1], 2), round(longest[-1][1], 2)
        found.append(Verdict(series, round(60.0 * max(slopes), 2), bound.per_hour, len(judged), first, last))
    return found
