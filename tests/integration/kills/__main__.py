"""``python -m tests.integration.kills``: the kill table; see ``make kills``."""

import faulthandler
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from tests.integration.kills.cells import Cell, run_cell
from tests.integration.kills.cluster import Cluster
from tests.integration.kills.evidence import Evidence
from tests.integration.kills.judge import Finding
from tests.integration.kills.moves import Move, trains_everywhere
from tests.integration.kills.pool import Pool
from tests.integration.kills.processes import Role
from tests.integration.kills.table import as_rows, held_before, show, write
from tests.integration.kills.users import Users, users

FIRST_TRAINING_S = 180.0  # four workers import torch on two cores

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


def run(pool: Pool, asking: Users, pairs: Sequence[tuple[Role, Move]]) -> Iterator[Cell]:
    """Run cells one after another; each is told as it ends."""
    evidence = Evidence(pool)
    for role, move in pairs:
        since_s = time.monotonic()
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
        yield cell


@click.command()
@click.option("--role", "roles", multiple=True, type=click.Choice([role.name for role in Role]), help="Only these.")
@click.option("--move", "moves", multiple=True, type=click.Choice([move.name for move in Move]), help="Only these.")
@click.option("--short", is_flag=True, help="What `make test` runs.")
@click.option("--engine", type=click.Choice(["process", "vllm"]), default="process", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where the table goes as JSON.")
@click.option("--missing", is_flag=True, help="Only what does not stand in --out's file as held; add to that file.")
@click.option("--keep", is_flag=True, help="Keep all logs.")
def main(
    roles: tuple[str, ...],
    moves: tuple[str, ...],
    short: bool,
    engine: str,
    out: Path | None,
    missing: bool,
    keep: bool,
) -> None:
    """Kill every process in every move, and judge."""
    faulthandler.enable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is ended by the finally clauses
    chosen = [role for role in Role if not roles or role.name in roles]
    tide = [move for move in Move if not moves or move.name in moves]
    pairs = SHORT if short else tuple((role, move) for role in chosen for move in tide)
    before = held_before(out) if missing and out is not None else {}
    pairs = tuple(pair for pair in pairs if (pair[0].value, pair[1].value) not in before)
    cells: list[Cell] = []
    try:
        for redis in (True, False):
            here = [(role, move) for role, move in pairs if (role is Role.GCS_MEMORY) != redis]
            if here:
                with (
                    pool_of_two_nodes(redis=redis, engine=engine, keep=keep) as pool,
                    users(pool.url, exact=engine == "process") as asking,
                ):
                    for cell in run(pool, asking, here):
                        cells.append(cell)
    finally:
        show(cells)
        if out is not None:
            write([*before.values(), *as_rows(cells)], out, command="make kills")
    sys.exit(0 if all(cell.clean for cell in cells) else 1)


if __name__ == "__main__":
    main()
