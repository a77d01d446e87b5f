"""``python -m tests.integration.kills``: the kill table; see ``make kills``."""

import faulthandler
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from evidence import again
from evidence.processes import POOL
from evidence.results import kill_case
from evidence.stamps import Begun
from tests.integration.kills.cells import Cell, run_cell
from tests.integration.kills.cluster import Cluster
from tests.integration.kills.evidence import Evidence
from tests.integration.kills.judge import Finding
from tests.integration.kills.moves import Move, trains_everywhere
from tests.integration.kills.pool import Pool
from tests.integration.kills.processes import Role
from tests.integration.kills.table import save, show
from tests.integration.kills.users import Users, users

FIRST_TRAINING_S = 180.0  # four workers import torch on two cores
POOL_S = 150.0  # a pool comes up and trains within a minute on a quiet machine, and one cell takes another
CELL_S = 90.0  # the longest of 84 took 81 s (2 cores, 2026-11-21)
Pair = tuple[Role, Move]

# In the order of a tide, so that few cells must first wait for another one.
SHORT = (
    (Role.ARBITER, Move.PARKING),
    (Role.GATEWAY, Move.IDLE),
    (Role.SERVE_CONTROLLER, Move.IDLE),
    (Role.REPLICA, Move.DRAINING),
    (Role.GCS_REDIS, Move.GROWING),
    (Role.ENGINE, Move.STARTING),
    (Role.TRAIN_CONTROLLER, Move.STOPPING),
    (Role.DRIVER, Move.RESUMING),
    (Role.RAYLET, Move.IDLE),
)
KILLED_ELSEWHERE = {
    Role.GCS_MEMORY: "tests/integration/test_operating.py, the last",
    Role.WORKER: "tests/train_jobs/test_two_nodes.py, test_pool_trainer.py",
    Role.AGENT: "tests/integration/test_two_nodes.py",
}
"""Each process once, but for those that other tests of `make test` kill; each move at least once."""


@contextmanager
def pool_of_two_nodes(*, redis: bool, engine: str = "process", keep: bool = False) -> Iterator[Pool]:
    """A pool whose job runs on all slots; its processes are ended, its files removed unless something was broken."""
    home = Path(tempfile.mkdtemp(prefix="ebkh-", dir="/tmp"))
    pool = Pool(Cluster(redis=redis), home, engine)
    failed = True
    try:
        pool.cluster.start()
        pool.learn_nodes()
        pool.up()
        pool.submit()
        pool.wait("the job trains on all slots", lambda s: trains_everywhere(pool, s), FIRST_TRAINING_S)
        yield pool
        failed = pool.broken
    finally:
        pool.close()
        if failed or keep:
            print(f"logs are kept: {home}, and Ray's in {pool.cluster.temp_dir}", flush=True)
        pool.cluster.stop(keep_files=failed or keep)
        shutil.rmtree(pool.lock_dir.parent, ignore_errors=True)
        if not (failed or keep):
            shutil.rmtree(home, ignore_errors=True)


def run(pool: Pool, asking: Users, pairs: Iterable[Pair], out: Path | None = None) -> Iterator[Cell]:
    """Run cells one after another; each is told as it ends, and goes into the file ``out``."""
    evidence = Evidence(pool)
    for role, move in pairs:
        since_s, begun = time.monotonic(), None if out is None else Begun.now(POOL)
        try:
            cell = run_cell(pool, asking, evidence, role, move)
        except Exception as error:  # noqa: BLE001 - the outermost loop: the other cells still say something
            traceback.print_exc()
            cell = Cell(role, move, findings=[Finding(6, f"the harness stumbled: {error!r}")])
        pool.broken = pool.broken or not cell.clean
        verdict = (
            "held" if cell.clean and cell.ran else cell.why_not if cell.clean else "; ".join(map(str, cell.findings))
        )
        print(
            f"[{time.monotonic() - since_s:5.1f} s] {role.value} x {move.value}: users {cell.saw}, "
            f"{cell.lost_steps} steps again, answered {cell.answered_s:g} s, trains {cell.trained_s:g} s: {verdict}",
            flush=True,
        )
        if begun is not None and out is not None:
            save(cell, begun.ended(), out)
        yield cell


@click.command()
@click.option("--role", "roles", multiple=True, type=click.Choice([role.name for role in Role]), help="Only these.")
@click.option("--move", "moves", multiple=True, type=click.Choice([move.name for move in Move]), help="Only these.")
@click.option("--short", is_flag=True, help="What `make test` runs.")
@click.option("--engine", type=click.Choice(["process", "vllm"]), default="process", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="The table as JSON, cell by cell.")
@click.option(
    "--minutes", type=float, default=None, help="Only cells that are missing or stale in --out's file, so long."
)
@click.option("--keep", is_flag=True, help="Keep all logs.")
def main(
    roles: tuple[str, ...],
    moves: tuple[str, ...],
    short: bool,
    engine: str,
    out: Path | None,
    minutes: float | None,
    keep: bool,
) -> None:
    """Kill every process in every move, and judge."""
    faulthandler.enable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is ended by the finally clauses
    chosen = [role for role in Role if not roles or role.name in roles]
    tide = [move for move in Move if not moves or move.name in moves]
    pairs = list(SHORT) if short else [(role, move) for role in chosen for move in tide]
    until_s = None if minutes is None else time.monotonic() + 60 * minutes
    if minutes is not None:
        pairs = stale(pairs, out)
        print(f"{len(pairs)} cells are missing or stale", flush=True)
    cells: list[Cell] = []
    try:
        for redis in (True, False):
            here = [(role, move) for role, move in pairs if (role is Role.GCS_MEMORY) != redis]
            if here and (until_s is None or time.monotonic() + POOL_S < until_s):
                with (
                    pool_of_two_nodes(redis=redis, engine=engine, keep=keep) as pool,
                    users(pool.url, exact=engine == "process") as asking,
                ):
                    for cell in run(pool, asking, in_time(here, until_s), out):
                        cells.append(cell)
    finally:
        show(cells)
    sys.exit(0 if all(cell.clean for cell in cells) else 1)


def stale(pairs: Iterable[Pair], out: Path | None) -> list[Pair]:
    """Those of ``pairs`` that no run of the present code stands behind, the stalest first."""
    old = json.loads(out.read_text()) if out is not None and out.exists() else {}
    named = {kill_case(role.value, move.value): (role, move) for role, move in pairs}
    return [named[row.case.name] for row in again.stale("kills", old, named)]


def in_time(pairs: Iterable[Pair], until_s: float | None) -> Iterator[Pair]:
    """Those of ``pairs`` that can be judged by then."""
    for pair in pairs:
        if until_s is None or time.monotonic() + CELL_S < until_s:
            yield pair


if __name__ == "__main__":
    main()
