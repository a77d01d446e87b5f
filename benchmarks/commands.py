"""What the command costs before it has done anything: ``python -m benchmarks.commands [--quick]``.

CPU of the whole process, user and system, of commands that people and scripts call often; and what the status costs the
arbiter that it leaves on its machine (``status_record``), on pools in mid-life (``large_pool``). No Ray: `status` reads
a record of 64 slots that this process leaves. The first round is not counted: it fills the page cache.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from random import Random

from benchmarks.large_pool import NOW_S, large_pool, with_demand
from benchmarks.rows import Bar, Row, result, row, write
from ebbtide.client.cluster_record import ClusterRecord, save_cluster
from ebbtide.system.runtime_dir import runtime_dir
from ebbtide_autoscaler.core.jobs.preemption_cost import preemption_costs
from ebbtide_autoscaler.journal.status_record import read_record, subject_of, write_record
from ebbtide_autoscaler.service.pool_view import view

COMMANDS = ("--help", "--version", "validate FILE", "status", "status --json", "why x", "up --help", "submit --help")
GOALS_S = {"--help": 0.5, "validate FILE": 0.7, "status": 0.5}
SIZES = (64, 1_000)
SEED = 7
FILE = """
pool: {name: demo, slots: 2, shared_dir: .}
endpoints:
  - {name: chat, model: ., replicas: {min: 0, max: 1}, slo: {ttft_s: 1, tpot_s: 1}, engine: {enforce_eager: true}}
jobs:
  - {name: a, entrypoint: 'os:getcwd', workers: {min: 1, max: 1}, global_batch: 1, micro_batch: 1}
"""


def cpu_s(words: str, folder: Path, env: Mapping[str, str]) -> float:
    """Of one process of the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    arguments = words.replace("FILE", "pool.yaml").split()
    subprocess.run([sys.executable, "-m", "ebbtide.cli", *arguments], cwd=folder, env=env, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def leave_status(folder: Path, record: ClusterRecord, slots: int) -> float:
    """Make and write the status of a pool of ``slots``; gives the CPU milliseconds that it took."""
    pool = large_pool(slots)
    seen, state = with_demand(pool, Random(SEED), 0.0), pool.world.state
    subject = subject_of(record.pool, record.shared_dir, record.address)
    before_s = time.thread_time()
    ways = preemption_costs(state, seen, restart_s=60.0, expected_s=60.0)
    told = {"pool": record.pool, "arbiter": {"epoch": 1, "frozen": ""}, **view(state, seen, {}, NOW_S, ways, ())}
    write_record(folder, subject, told, since_boot_s=time.clock_gettime(time.CLOCK_BOOTTIME))
    return 1000 * (time.thread_time() - before_s)


def measure(quick: bool = False) -> tuple[list[Row], list[Bar]]:
    """All rows, and the bars of issue 44."""
    rounds = 2 if quick else 7
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="ebbtide-commands-") as name:
        folder = Path(name)
        (folder / "pool.yaml").write_text(FILE)
        env = {**os.environ, "EBBTIDE_HOME": str(folder / "home"), "TMPDIR": name}
        os.environ["EBBTIDE_HOME"], tempfile.tempdir = env["EBBTIDE_HOME"], name
        record = ClusterRecord("demo", "127.0.0.1:1", "", "", str(folder), "pool.yaml")
        save_cluster(record)
        here = runtime_dir(record.pool)
        here.mkdir(parents=True)
        for number in range(rounds + 1):
            for words in COMMANDS:
                leave_status(here, record, SIZES[0])  # anew each time: one of more than 2 s ago is not shown
                taken_s = cpu_s(words, folder, env)
                if number:
                    found[f"ebbtide {words}", "CPU", "s"].append(taken_s)
            for slots in SIZES:
                taken_ms = leave_status(here, record, slots)
                if number:
                    found[f"status record of {slots} slots", "CPU of a record", "ms"].append(taken_ms)
        assert read_record(here, subject_of(record.pool, record.shared_dir, record.address)) is not None
        tempfile.tempdir = None
    rows = [row(*case, values) for case, values in found.items()]
    medians = {one.case: one.median for one in rows}
    goals_s = {f"ebbtide {words}": goal_s for words, goal_s in GOALS_S.items()}
    bars = [
        Bar(case, f"< {goal_s} s of CPU", medians[case], medians[case] < goal_s) for case, goal_s in goals_s.items()
    ]
    return rows, bars


if __name__ == "__main__":
    print(write(result("commands", "python -m benchmarks.commands", *measure("--quick" in sys.argv))))
