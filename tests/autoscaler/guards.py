"""``make sim-guards``: takes each guard of the policy out of a copy of the source, and plays seeds until one fails.

A guard is a condition without which the policy would still run, and break what the pool promises (`evidence.guards`).
What no seed notices would be lost by some later change that no storm shows; its own test stands all the same. Prints
one row per guard: the first seed that fails without it, and what the referee said.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from evidence.closure import modules_behind
from evidence.guards.comments import ROOMS, Guard, guards_of
from evidence.guards.mutations import Mutation, mutations
from evidence.guards.trial import product_with
from evidence.results import module_of
from tests.autoscaler.pools import BUSY, luck_of
from tests.autoscaler.sim import played

ROOT = Path(__file__).parents[2]
DECIDES = "ebbtide_autoscaler.core.decide.policy"
ITS_ROOM = "ebbtide_autoscaler"


def policy_guards() -> list[Guard]:
    """Those in the modules of the autoscaler that a decision goes through."""
    there = {name for name in modules_behind([DECIDES]) if name.startswith(ITS_ROOM)}
    return [guard for guard in guards_of(ROOT) if module_of(guard.file) in there]


def removals(guard: Guard) -> Iterator[Mutation]:
    """The ways in which it is taken out; inverting is left to its own test, for any seed notices that at once."""
    found = mutations((ROOT / guard.file).read_text(), guard.line)
    return (one for one in found if one.how != "inverted" or len(found) == 1)


def caught(guard: Guard, seeds: int) -> tuple[int, str]:
    """The first seed that fails without ``guard``, and what was said; -1 if none of them does."""
    for mutation in removals(guard):
        with product_with(ROOT, {guard.file: mutation.source}) as product:
            path = os.pathsep.join([*(str(product / room) for room in ROOMS), str(ROOT)])
            command = [sys.executable, "-m", "tests.autoscaler.guards", "--hunt", "--seeds", str(seeds)]
            env = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
        seed, _, said = done.stdout.strip().partition(" ")
        if int(seed) >= 0:
            return int(seed), said
    return -1, ""


def hunted(seeds: int) -> str:
    """Play seeds until one fails, busy ones first: in these the policy has most to decide."""
    for seed in sorted(range(seeds), key=lambda seed: luck_of(seed) is not BUSY):
        told = played(seed)
        if told.why:
            return f"{seed} {told.why.splitlines()[0]}"
    return "-1"


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=100, show_default=True, help="At most, for each guard.")
@click.option("--only", default="", help="Guards with this in their name.")
@click.option("--hunt", is_flag=True, hidden=True, help="Play seeds of the source that is imported.")
def main(seeds: int, only: str, hunt: bool) -> None:
    """Print a row for each guard; exit code 1 if fewer than ten are caught."""
    if hunt:
        print(hunted(seeds))
        return
    print("| guard | where | seed | what was said |\n|---|---|---|---|")
    found = 0
    for guard in policy_guards():
        if only in guard.name:
            seed, said = caught(guard, seeds)
            found += seed >= 0
            seen = seed if seed >= 0 else "none"
            print(f"| {guard.name} | {module_of(guard.file)} | {seen} | {said.replace('|', '/')[:160]} |", flush=True)
    sys.exit(found < 10 and not only)


if __name__ == "__main__":
    main()
