"""``make chaos`` and ``make soak``: rounds of mishaps against one pool until the time is over.

Chaos plays some rounds of each of its seeds and a soak plays one seed for an hour; what has ended goes into the result
(benchmarks/results), and the next run plays the seeds that are missing or stale. With ``--seed`` one seed is played for
all of the time, for a look, and stands in no result. A soak ends with a stretch of traffic without mishaps. Exit code 0
only if no promise was broken (and, for a soak, nothing grew beyond its bound). A failing run prints its last actions
and keeps its logs; its seed and round number play the same actions again (``--first N``).
"""

import faulthandler
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks.rows import result
from evidence.again import stale
from evidence.processes import POOL
from evidence.provenance import RESULTS
from evidence.result_file import load, read, write
from evidence.results import cases_of
from evidence.stamps import Begun, Stamp, stamps_of, with_stamps
from tests.integration.kills.__main__ import pool_of_two_nodes
from tests.integration.kills.evidence import Evidence
from tests.integration.kills.growth import BOUNDS, WARM_UP_MIN, verdicts
from tests.integration.kills.picture import draw
from tests.integration.kills.player import Player, Round, as_json
from tests.integration.kills.sampler import Sampler
from tests.integration.kills.sampler import save as save_samples
from tests.integration.kills.users import users

SAMPLE_EVERY_S = 60.0
CALM_SHARE = 1 / 3  # of a soak: what is killed every few minutes lives too briefly for its growth to be seen
MAY_BE_BRIEF = ("replica", "engine", "worker")  # they come and go with the tides
ROUNDS_A_SEED = 4  # of chaos: some seven minutes
SOAK_LEAST_MIN = 55.0  # growth is judged by the hour: what is shorter is a look, and no result
OUT = Path("out")


class Broken(RuntimeError):
    """The run was not clean; its logs are to be kept."""


@dataclass
class Played:
    """One seed on a pool, and what came of it."""

    seed: int
    rounds: list[Round] = field(default_factory=list)
    growth: list[dict[str, object]] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    minutes: float = 0.0
    finished: bool = False

    @property
    def held(self) -> bool:
        """Nothing was broken so far."""
        return all(map(all_well, self.rounds)) and not any(one["grows"] for one in self.growth)

    @property
    def clean(self) -> bool:
        """It ended, nothing was broken, and everything that could grow was judged."""
        judged = all(series.endswith(MAY_BE_BRIEF) for series in self.unjudged)
        return self.finished and bool(self.rounds) and self.held and judged

    def as_row(self, *, soak: bool) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "case": f"seed {self.seed}",
            "seed": self.seed,
            "minutes": round(self.minutes, 1),
            "clean": self.clean,
            "rounds": [as_json(played) for played in self.rounds],
            "users_saw": _total(self.rounds),
            "growth": self.growth,
            "lived_too_briefly_to_be_judged": self.unjudged,
            "bounds": {name: asdict(bound) for name, bound in BOUNDS.items()} if soak else {},
        }


@click.command()
@click.option("--minutes", type=float, default=30.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Only this one, for all of the time; it goes into no result.")
@click.option("--first", type=int, default=0, help="Begin with this round of the schedule of --seed.")
@click.option("--soak", is_flag=True, help="Sample everything that could grow, and judge that too.")
@click.option("--keep", is_flag=True, help="Keep all logs in any case.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="The folder of the results.")
def main(minutes: float, seed: int | None, first: int, soak: bool, keep: bool, out: Path) -> None:
    """Play schedules for the given minutes."""
    faulthandler.enable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    name = "soak" if soak else "chaos"
    if seed is not None:
        seeds = [seed]
    elif soak and minutes < SOAK_LEAST_MIN:
        raise click.UsageError(
            f"a soak of less than {SOAK_LEAST_MIN:g} minutes is no result; SEED=n plays one for a look"
        )
    else:
        wanted = stale(name, load(name, out), [case.name for case in cases_of(name)])
        seeds = [int(row.case.name.removeprefix("seed ")) for row in wanted][: 1 if soak else None]
        first = 0
        print(f"{name}: {len(wanted)} seeds are missing or stale", flush=True)
    record = None if seed is not None else out / f"{name}.json"
    sys.exit(not all(one.clean for one in played_in_time(seeds, minutes, first, record, soak=soak, keep=keep)))


def played_in_time(
    seeds: Sequence[int], minutes: float, first: int, record: Path | None, *, soak: bool, keep: bool
) -> list[Played]:
    """The seeds for which there is time, on one pool; those that go into a result are written to ``record``."""
    found: list[Played] = []
    until_s = time.monotonic() + 60 * minutes
    all_of_it = soak or record is None
    if not seeds:
        return found
    try:
        with pool_of_two_nodes(redis=True, keep=keep) as pool, users(pool.url) as asking:
            evidence, spent_s = Evidence(pool), 0.0
            for seed in seeds:
                left_s = until_s - time.monotonic()
                if left_s < spent_s:
                    break
                begun, played = Begun.now(POOL), Played(seed)
                found.append(played)
                player = Player(pool, asking, evidence, seed)
                limit_s, rounds = (left_s, None) if all_of_it else (math.inf, ROUNDS_A_SEED)
                play(player, played, first, limit_s, rounds, soak=soak)
                spent_s = 60 * played.minutes
                if record is not None:
                    save(played, begun.ended(), record, soak=soak)
                if not played.held:
                    print("the last actions:", *player.told, sep="\n  ", flush=True)
                    raise Broken
    except Broken:
        pass
    finally:
        for played in found:
            tell(played, soak=soak)
    return found


def play(player: Player, played: Played, first: int, limit_s: float, rounds: int | None, *, soak: bool) -> None:
    """One seed, for ``limit_s`` or some rounds; a broken promise ends it, since what comes after says nothing."""
    began_s, sampler = time.monotonic(), Sampler(player.pool)
    calm_s = limit_s * CALM_SHARE if soak else 0.0
    with sampling(sampler, on=soak):
        number = first
        while played.held and (
            time.monotonic() - began_s < limit_s - calm_s if rounds is None else number < first + rounds
        ):
            played.rounds.append(player.play(number))
            sampler.at_rest()
            print(f"seed {played.seed}, {line(played.rounds[-1])}", flush=True)
            number += 1
        if soak and played.held:
            played.rounds.append(player.calm(number, calm_s))
            sampler.at_rest()
            print(line(played.rounds[-1]), flush=True)
    played.minutes = (time.monotonic() - began_s) / 60
    if soak:
        judge_growth(sampler, played)
    played.finished = True


def judge_growth(sampler: Sampler, played: Played) -> None:
    """What grew beyond its bound, what lived too briefly to be judged; the samples are drawn and saved."""
    found = verdicts(sampler.samples, warm_up_min=min(WARM_UP_MIN, played.minutes / 4))
    played.growth = [asdict(one) | {"grows": one.grows} for one in found]
    played.unjudged = sorted({one.series for one in sampler.samples} - {one.series for one in found})
    folder = OUT / "soak"
    folder.mkdir(parents=True, exist_ok=True)
    draw(sampler.samples, folder / f"{played.seed}.png")
    save_samples(sampler.samples, folder / f"{played.seed}.csv")


def save(played: Played, stamp: Stamp, path: Path, *, soak: bool) -> None:
    """Put a seed into the result. One that was not clean gets no stamp, and so is the first to be played again."""
    name, old = path.stem, read(path)
    row = played.as_row(soak=soak)
    rows = {one["case"]: one for one in (*old.get("rows", ()), row)}
    stamps = {**stamps_of(old), row["case"]: stamp}
    kept = {case: stamps[case] for case in rows if case in stamps and rows[case]["clean"]}
    document = result(name, f"make {name}", [], []) | {"rows": sorted(rows.values(), key=lambda one: one["seed"])}
    write(with_stamps(document, kept), path)


def tell(played: Played, *, soak: bool) -> None:
    """How a seed ended; all of it goes to a file below out/."""
    row = played.as_row(soak=soak)
    path = OUT / ("soak" if soak else "chaos") / f"{played.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(row, indent=1) + "\n")
    verdict = "clean" if played.clean else "NOT CLEAN"
    print(
        f"seed {played.seed}: {verdict}, {len(played.rounds)} rounds, users saw {row['users_saw']}; {path}", flush=True
    )
    for one in played.growth:
        grows = "  GROWS" if one["grows"] else ""
        print(f"  {one['series']}: {one['slope_per_hour']} per hour, bound {one['bound_per_hour']}{grows}")
    if played.unjudged:
        brief = ", ".join(MAY_BE_BRIEF)
        print(f"  lived too briefly to be judged (only {brief} may): {', '.join(played.unjudged)}")


def all_well(played: Round) -> bool:
    """Nothing was broken in this round."""
    return not played.findings


def line(played: Round) -> str:
    """A round in one line."""
    verdict = "; ".join(map(str, played.findings)) or "held"
    return (
        f"round {played.number}: {len(played.done)} lines of action, users {played.saw}, "
        f"{played.crash_lost_steps} steps again, answered after {played.answered_s:g} s, trains after "
        f"{played.trained_s:g} s, at rest after {played.settled_s:g} s: {verdict}"
    )


def _total(rounds: list[Round]) -> dict[str, int]:
    total: dict[str, int] = {}
    for played in rounds:
        for saw, count in played.saw.items():
            total[saw] = total.get(saw, 0) + count
    return total


@contextmanager
def sampling(sampler: Sampler, *, on: bool) -> Iterator[None]:
    """Samples once a minute, in a thread of its own, while the body runs."""
    over = threading.Event()

    def keep_on() -> None:
        while not over.wait(SAMPLE_EVERY_S):
            sampler.sample()

    thread = threading.Thread(target=keep_on, name="sampler", daemon=True)
    if on:
        sampler.sample()
        thread.start()
    try:
        yield
    finally:
        over.set()
        if on:
            thread.join(30)


if __name__ == "__main__":
    main()
