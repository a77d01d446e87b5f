"""``make chaos`` and ``make soak``: rounds of mishaps against one pool until the time is over.

A soak ends with a stretch of traffic without mishaps. Exit code 0 only if no promise was broken (and, for a soak,
nothing grew beyond its bound). A failing run prints its last actions and keeps its logs; its seed and round number play
the same actions again (``--first N``).
"""

import faulthandler
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from tests.integration.kills.__main__ import pool_of_two_nodes
from tests.integration.kills.evidence import Evidence
from tests.integration.kills.growth import BOUNDS, WARM_UP_MIN, verdicts
from tests.integration.kills.picture import draw
from tests.integration.kills.player import Player, Round, as_json
from tests.integration.kills.sampler import Sampler, save
from tests.integration.kills.users import users

SAMPLE_EVERY_S = 60.0
CALM_SHARE = 1 / 3  # of a soak: what is killed every few minutes lives too briefly for its growth to be seen
MAY_BE_BRIEF = ("replica", "engine", "worker")  # they come and go with the tides
OUT = Path("out")


class Broken(RuntimeError):
    """The run was not clean; its logs are to be kept."""


@click.command()
@click.option("--minutes", type=float, default=30.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Default: taken from the clock, and printed.")
@click.option("--first", type=int, default=0, help="Begin with this round of the schedule.")
@click.option("--soak", is_flag=True, help="Sample everything that could grow, and judge that too.")
@click.option("--keep", is_flag=True, help="Keep all logs in any case.")
def main(minutes: float, seed: int | None, first: int, soak: bool, keep: bool) -> None:
    """Play the schedule of SEED for so many minutes."""
    faulthandler.enable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = int(time.time()) % 1_000_000 if seed is None else seed
    print(f"seed {seed}, {minutes:g} minutes", flush=True)
    folder = OUT / ("soak" if soak else "chaos")
    folder.mkdir(parents=True, exist_ok=True)
    rounds: list[Round] = []
    growth: list[dict[str, object]] = []
    unjudged: list[str] = []
    told: list[str] = []
    began_s = time.monotonic()
    broken = finished = False
    all_judged = True
    try:
        with pool_of_two_nodes(redis=True, keep=keep) as pool, users(pool.url) as asking:
            player = Player(pool, asking, Evidence(pool), seed)
            sampler = Sampler(pool)
            with sampling(sampler, on=soak):
                number = first
                calm_s = 60 * minutes * CALM_SHARE if soak else 0.0
                while time.monotonic() - began_s < 60 * minutes - calm_s and all(map(all_well, rounds)):
                    rounds.append(player.play(number))
                    sampler.at_rest()
                    print(line(rounds[-1]), flush=True)
                    number += 1
                if soak and all(map(all_well, rounds)):  # what comes after a broken promise says nothing
                    rounds.append(player.calm(number, calm_s))
                    sampler.at_rest()
                    print(line(rounds[-1]), flush=True)
            if soak:
                growth = [
                    asdict(one) | {"grows": one.grows}
                    for one in verdicts(sampler.samples, warm_up_min=min(WARM_UP_MIN, minutes / 4))
                ]
                unjudged = sorted({one.series for one in sampler.samples} - {str(one["series"]) for one in growth})
                all_judged = all(series.endswith(MAY_BE_BRIEF) for series in unjudged)
                draw(sampler.samples, folder / f"{seed}.png")
                save(sampler.samples, folder / f"{seed}.csv")
            finished, told = True, list(player.told)
            broken = any(not all_well(played) for played in rounds) or any(one["grows"] for one in growth)
            if broken:
                raise Broken
    except Broken:
        print("the last actions:", *told, sep="\n  ", flush=True)
    finally:
        summary = {
            "seed": seed,
            "minutes": round((time.monotonic() - began_s) / 60, 1),
            "clean": finished and bool(rounds) and not broken and all_judged,
            "rounds": [as_json(played) for played in rounds],
            "users_saw": _total(rounds),
            "growth": growth,
            "lived_too_briefly_to_be_judged": unjudged,
            "bounds": {name: asdict(bound) for name, bound in BOUNDS.items()} if soak else {},
        }
        path = folder / f"{seed}.json"
        path.write_text(json.dumps(summary, indent=1) + "\n")
        print(f"{len(rounds)} rounds, users saw {summary['users_saw']}; summary: {path}", flush=True)
        for one in growth:
            verdict = "  GROWS" if one["grows"] else ""
            print(f"  {one['series']}: {one['slope_per_hour']} per hour, bound {one['bound_per_hour']}{verdict}")
        if unjudged:
            print(f"  lived too briefly to be judged: {', '.join(unjudged)}")
        if not all_judged:
            print(f"  so it is not clean: only {', '.join(MAY_BE_BRIEF)} may be missing; a longer run sees more")
    sys.exit(0 if summary["clean"] else 1)


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
