"""``make sim-guards``: removes each guard of the policy from a copy of the source, and plays seeds until one fails.

A guard is a condition without which the policy would still run, and break what the pool promises. What no seed misses
would be lost by some later change without anybody's noticing. Prints the table of ``docs/decisions``, one row per
guard: a seed that catches its removal, and what was said.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from tests.autoscaler.pools import BUSY, luck_of
from tests.autoscaler.sim import played

ROOT = Path(__file__).parents[2]
ROOMS = ("autoscaler", "platform")


@dataclass(frozen=True, slots=True)
class Guard:
    """A textual change that takes one guard out: ``text`` in ``file`` becomes ``without``."""

    name: str
    file: str
    text: str
    without: str


def _in(file: str, *guards: tuple[str, str, str]) -> tuple[Guard, ...]:
    return tuple(Guard(name, file, text, without) for name, text, without in guards)


GUARDS = (
    *_in(
        "autoscaler/ebbtide_autoscaler/placement.py",
        (
            "a semi-preemptible job keeps its minimum",
            "        return max(0, len(job.gang) - job.spec.workers_min)\n",
            "        return len(job.gang)\n",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/preemptions.py",
        (
            "a non-preemptible job is never asked",
            "    if spec.workload_class is WorkloadClass.NON_PREEMPTIBLE:\n",
            "    if False:\n",
        ),
        ("a job runs for its minimum runtime", "    if left_s > 0:\n", "    if False:\n"),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/training.py",
        ("slots on their way are not asked for again", "    draft.shortfall.give(coming)\n", ""),
        ("only as many jobs as are needed", "        if not lack.missing:\n            break\n", ""),
        (
            "the least important job first",
            "        return job.spec.priority, loses,",
            "        return -job.spec.priority, loses,",
        ),
        (
            "jobs leave a draining node",
            "    for job in sorted(state.jobs.values(), key=turn) if state.draining else ():",
            "    for job in ():",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/policy.py",
        ("held jobs go aside", "    put_aside(state, draft)\n", ""),
        ("warm replicas give way", "    give_way(state, draft)\n", ""),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/yielding.py",
        ("a minimum makes place for nobody", "max(1, own.least, ", "max(1, 0, "),
        ("the higher priority makes no place", ".spec.priority > priority:", ".spec.priority > 1_000:"),
        ("a starting replica stands in for nobody", "(count := self._ready(name) - keeps)", "(count := 9)"),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/free.py",
        (
            "one replica is placed on a node at a time",
            "            if len(slots) < count or node in busy:\n",
            "            if len(slots) < count:\n",
        ),
        (
            "all slots of a replica are on one node",
            "        slots = self._by_node[node]\n        return tuple(",
            "        slots = list(self)\n        return tuple(",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/allot.py",
        (
            "replicas that lack slots go before parked jobs",
            '    if job.cancelled or draft.contested:\n        table.wait(job, "parked',
            '    if job.cancelled:\n        table.wait(job, "parked',
        ),
        (
            "replicas that lack slots go before waiting jobs",
            "    if draft.contested:\n        if name in draft.minima",
            "    if False:\n        if name in draft.minima",
        ),
        (
            "slots that a job was stopped to run on are kept",
            "            table.take(table.for_job(job)[: table.most_workers(job, 0)], job, later=True)\n",
            "            pass\n",
        ),
        (
            "the reserve stays free of jobs that resume",
            "    if not missing and has <= most and len(draft.free) - has >= config.reserve + table.left_to_others():",
            "    if not missing:",
        ),
        (
            "a job does not grow while a replica starts",
            "    calm = not _coming(state.seats)",
            "    calm = True",
        ),
        ("a job grows only into what has stayed free", "    if free_s < table.config.grow_after_s or ", "    if "),
        (
            "a job that crashed waits",
            "        elif job.state is JobState.WAITING and now_s < job.not_before_s:",
            "        elif False:",
        ),
        (
            "a held job gets nothing",
            "        if job.held is not None or job.spec.name in moved:",
            "        if job.spec.name in moved:",
        ),
        (
            "a parked job resumes on exactly its slots",
            "    missing = draft.free.missing(job.gang)\n",
            "    missing = []\n",
        ),
        (
            "jobs leave a minimum that is owed",
            "    table.owed = {} if draft.contested else _left_to(table)\n",
            "",
        ),
        (
            "a quota holds for a minimum that is owed",
            "    if most < spec.workers_min:\n        table.wait(job, _over_quota(table, job, spec.workers_min))\n"
            "        return\n    if draft.contested:\n",
            "    if draft.contested:\n",
        ),
        (
            "a parked job resumes only within its team's quota",
            "    most = table.most_workers(job, 0)\n    if most < job.spec.workers_min:\n",
            "    most = job.spec.workers_max\n    if False:\n",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/preemptions.py",
        (
            "the bound on preemptions",
            "    if len(recent) >= job.spec.max_preemptions_per_h:\n",
            "    if False:\n",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/table.py",
        (
            "from a job that starves or claims nothing is kept for those that can return",
            " and (starves_now(self, job) or self.claims(job)):\n",
            " and False:\n",
        ),
        (
            "the reserve stays free",
            "max(0, len(free) - self.config.reserve - self.left_to_others(name))",
            "max(0, len(free) - self.left_to_others(name))",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/starving.py",
        (
            "what is free is kept for a job that starves",
            "    table.starving = job.spec.name\n    table.take(free)\n",
            "    table.starving = job.spec.name\n",
        ),
        ("who starves may not have protected jobs leave", " and not protected(table.now_s, one)]\n", "]\n"),
        ("a guarantee is claimed", "    claims = table.claims(job)\n", "    claims = False\n"),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/kept_for_parked.py",
        (
            "slots of a job that has just parked are kept",
            "for slot, names in waiting.items()} if back else {}\n",
            "for slot, names in ()}\n",
        ),
        (
            "what a job was stopped to grow into is not kept from it for one released later",
            "    if not released:\n",
            "    if True:\n",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/turn.py",
        (
            "jobs have their turn by priority, then as they came",
            "    return -job.spec.priority, job.submitted_s, job.submission\n",
            "    return 0, -job.submitted_s, -job.submission\n",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/teams.py",
        (
            "a quota is never passed",
            "        return inf if quota is None else max(0, quota - self.held(job))\n",
            "        return inf\n",
        ),
        (
            "who is within a guarantee goes first",
            "        return not self.within(job), by_weight,",
            "        return False, by_weight,",
        ),
        (
            "no lender's team falls below its guarantee",
            "            borrowed = left[team.name] - team.guarantee\n",
            "            borrowed = left[team.name]\n",
        ),
        (
            "nobody of a higher priority lends",
            " and one.spec.priority <= job.spec.priority\n",
            "\n",
        ),
        (
            "only preemptible jobs lend",
            "            lends = one.spec.workload_class is WorkloadClass.PREEMPTIBLE and ",
            "            lends = ",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/owed.py",
        (
            "minima of jobs that come back are owed",
            "    waiting = on_their_way_back(state.jobs)\n",
            "    waiting = ()\n",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/host_memory.py",
        (
            "host memory of a parked job is there",
            "        if state.parked_bytes(node) + promised[node] + more_bytes > state.nodes.get(node, 0):",
            "        if False:",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/warm.py",
        ("host memory of a warm replica is there", "    if needed > state.nodes.get(node, 0):", "    if False:"),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/serving.py",
        (
            "only a ready replica is drained for less demand",
            "    if seat.state is not SeatState.READY:\n        return False\n",
            "",
        ),
        (
            "a replica lives a multiple of its start",
            "    return now_s - seat.ready_since_s >= least_s or bool(why_outdated(state, seat))\n",
            "    return True\n",
        ),
        (
            "a replica that starts stands in for none",
            "    surplus = sum(seat.state is SeatState.READY for seat in seats) - aim\n",
            "    surplus = len(seats) - aim\n",
        ),
        ("silent gateways move nothing", "    if not signals.known:\n        return", "    if False:\n        return"),
        (
            "what is scheduled is aimed at",
            "    known, known_why = scheduled(spec, now_s, lead_s)\n",
            '    known, known_why = 0, ""\n',
        ),
        (
            "what is scheduled is aimed at at once",
            "max(before.aim, spec.replicas_min, known)",
            "max(before.aim, spec.replicas_min)",
        ),
        (
            "replicas_max",
            "    bounded = min(max(raw, spec.replicas_min), spec.replicas_max)",
            "    bounded = max(raw, spec.replicas_min)",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/retry.py",
        (
            "a start that failed waits",
            "    may = () if wait_s or trying or best is None else (best,)",
            "    may = tuple(cold)",
        ),
    ),
    *_in(
        "autoscaler/ebbtide_autoscaler/cluster/size.py",
        (
            "a node with an occupant never goes",
            "(node for node in usable if not occupants(state, node))",
            "usable",
        ),
        (
            "nodes_max",
            "min(max(more - len(back), config.nodes_min - here, 0), max(0, config.nodes_max - here))",
            "max(more - len(back), config.nodes_min - here, 0)",
        ),
        ("nodes_min", "        enough = here - len(found) > config.nodes_min\n", "        enough = True\n"),
        (
            "only a node that somebody can end goes",
            "sorted(removable.intersection(long_empty),",
            "sorted(long_empty,",
        ),
        (
            "the cluster grows for what is lacking",
            "    more = wanted.more_nodes(config.node_slots)\n",
            "    more = 0\n",
        ),
    ),
    *_in(
        "platform/ebbtide/pool/index.py",
        (
            "a draining node is granted nothing",
            "for node, slots in sorted(found.items()) if node not in draining}",
            "for node, slots in sorted(found.items())}",
        ),
    ),
)


def without(guard: Guard, folder: Path) -> dict[str, str]:
    """A copy of the source without ``guard`` in ``folder``; the environment in which it is imported."""
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / guard.file
    source = file.read_text()
    if source.count(guard.text) != 1:
        raise ValueError(f"{guard.file} has the text of the guard {guard.name!r} {source.count(guard.text)} times")
    file.write_text(source.replace(guard.text, guard.without))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*(str(folder / room) for room in ROOMS), str(ROOT)])}


def caught(guard: Guard, seeds: int) -> tuple[int, str]:
    """A seed that fails without ``guard``, and what was said; -1 if none of so many does."""
    with tempfile.TemporaryDirectory() as folder:
        env = without(guard, Path(folder))
        command = [sys.executable, "-m", "tests.autoscaler.guards", "--hunt", "--seeds", str(seeds)]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    seed, _, said = done.stdout.strip().partition(" ")
    return int(seed), said


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
    for guard in GUARDS:
        if only not in guard.name:
            continue
        seed, said = caught(guard, seeds)
        found += seed >= 0
        where = guard.file.rpartition("/")[2]
        print(
            f"| {guard.name} | `{where}` | {seed if seed >= 0 else 'none'} | {said.replace('|', '/')[:160]} |",
            flush=True,
        )
    sys.exit(found < 10 and not only)


if __name__ == "__main__":
    main()
