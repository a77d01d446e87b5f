"""What cannot be if the simulator is sound: somebody beats the bound, or perfect foresight. Pure.

Foresight is beaten by whoever is better at one of the two things and no worse at the other: trains more and serves as
well, or serves better and trains no less. Who lets requests wait has more slots for training, and who leaves slots idle
has more for requests: these are other points of the same frontier. Foresight has several of them, one for each plan
that it tried, and who does no better than one of those has not beaten it. Each seed is a world of its own.

Compared is what is scored. Whoever trains more in it only since he has left work of the warm-up for it is no better, so
he has to have done more by the end, too. What `luck` may make counts for nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]

SERVES = 0.99  # of the requests in time: only those are held against the bound that serve
AS_WELL = 0.001  # of the requests in time: what seeds differ by, and what users do not notice
ROUNDING = 1e-9
GANGS = 0.01  # foresight knows requests, not which gangs happen to fit: a rival may be lucky by so much over weeks
NO_LUCK = dict.fromkeys(("start_gpu_s", "failures_gpu_s", "requests_share", "failures_share"), 0.0)


def contradictions(
    runs: Mapping[str, Mapping[int, Figures]],
    oracle: str | None,
    others: Mapping[int, Sequence[Figures]] | None = None,
) -> list[str]:
    """Each in words.

    Args:
        runs: a run's figures by contender and seed.
        oracle: which of them has perfect foresight; None: nobody, since its plans are for a fluid.
        others: what its other plans came to, by seed; None: it has none.
    """
    return [
        told
        for name, seeds in runs.items()
        for seed, mine in sorted(seeds.items())
        for told in _of(
            f"{name}, seed {seed}", mine, runs.get(oracle or "", {}).get(seed), (others or {}).get(seed, ())
        )
    ]


def _of(who: str, mine: Figures, foreseen: Figures | None, others: Sequence[Figures]) -> Iterator[str]:
    serves, trained_s = mine["slo_attainment"], mine["goodput_gpu_s"]
    if serves >= SERVES and trained_s > mine["bound_gpu_s"] * (1 + ROUNDING):
        yield f"{who}: {trained_s:.0f} GPU-s of training, and the bound is {mine['bound_gpu_s']:.0f}"
    if foreseen is None or any(_holds(other, mine) for other in others):
        return
    foresees, foreseen_s, more_s = foreseen["slo_attainment"], foreseen["goodput_gpu_s"], _more_s(mine, foreseen)
    if serves >= SERVES and serves >= foresees - AS_WELL and more_s > _lucky_s(mine, foreseen_s):
        yield f"{who}: {trained_s:.0f} GPU-s of training, and with perfect foresight it is {foreseen_s:.0f}"
    if serves > foresees + _lucky_share(mine) and more_s >= 0.0:
        yield (
            f"{who}: {serves:.2%} of the requests in time, and with perfect foresight and no more training it is "
            f"{foresees:.2%}"
        )


def _holds(foreseen: Figures, mine: Figures) -> bool:
    """Whether that plan is no worse, as far as luck goes: it serves as well, and trains as much."""
    serves = foreseen["slo_attainment"] >= mine["slo_attainment"] - _lucky_share(mine)
    return serves and _more_s(mine, foreseen) <= _lucky_s(mine, float(foreseen["goodput_gpu_s"]))


def _more_s(mine: Figures, foreseen: Figures) -> float:
    """Training beyond foresight's: of what is scored, and of all that is done by the end, whichever is less."""
    return min(float(mine[name] - foreseen[name]) for name in ("goodput_gpu_s", "work_done_gpu_s") if name in mine)


def _lucky_s(mine: Figures, foreseen_s: float) -> float:
    """Training beyond foresight's that proves nothing."""
    luck = mine.get("luck", NO_LUCK)
    return max(GANGS * foreseen_s, float(luck["failures_gpu_s"])) + float(luck["start_gpu_s"])


def _lucky_share(mine: Figures) -> float:
    """The same of requests in time."""
    luck = mine.get("luck", NO_LUCK)
    return max(AS_WELL, float(luck["failures_share"])) + float(luck["requests_share"])
