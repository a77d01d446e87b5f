"""Ranks that train together: one image with their connections in it; or, once they let go of those, one of each."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from ebbtide.helper.criu.criu_program import Criu
from ebbtide.helper.errors import Refused
from ebbtide.system.process import is_alive, started_ticks
from tests.platform.helper.trees import Running, end, helping

WORLD = 2
STEP_S = 0.2  # at most, of two ranks beside two others and dumps of them, on two busy cores
WAIT_S = 90.0  # a loaded machine needs half a minute to import torch
STEPS_AN_IMAGE = 150  # 40 at most until it is wanted; it trains on while it is prepared, for long on a busy machine


@contextmanager
def training(folder: Path, name: str, steps: int, rank: str, pause_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """One rank, or "all" of them below one process; killed at the end, with what was revived of it."""
    with (folder / f"log-{name}-{rank}").open("ab") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("ranks.py")),
                *(str(folder), name, str(steps), str(pause_s), str(WORLD), rank),
            ],
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        end(process.pid)
        process.wait()


@contextmanager
def undisturbed(folder: Path, steps: int) -> Iterator[None]:
    """Runs beside what is done meanwhile; in the end each rank of "job" must have written the same bytes."""
    with training(folder, "calm", steps, "all", 0.0) as calm:
        yield
        assert calm.wait(max(WAIT_S, STEP_S * steps)) == 0, (folder / "log-calm-all").read_text()
    for rank in range(WORLD):
        assert (folder / f"job-{rank}").read_bytes() == (folder / f"calm-{rank}").read_bytes(), f"rank {rank} differs"


def steps_done(folder: Path, rank: int = 0) -> int:
    path = folder / f"job-{rank}"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def await_steps(folder: Path, count: int, what: str = "") -> None:
    """Wait until every rank has done so many."""
    end_s = time.monotonic() + WAIT_S
    while min(steps_done(folder, rank) for rank in range(WORLD)) < count:
        logs = [path.read_text()[-2000:] for path in folder.glob("log-job-*")]
        assert time.monotonic() < end_s, f"waited for step {count}, {what}: {logs}"
        time.sleep(0.005)


def sockets(pid: int) -> list[str]:
    """What a process has open that connects it to another."""
    found = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return [target for target in found if target.startswith("socket:")]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def register(running: Running, name: str, process: subprocess.Popen[bytes]) -> None:
    running.helper.register(name, process.pid, started_ticks(process.pid) or 0)


def imaged_together(folder: Path, criu: Criu, images: int, seed: int) -> None:
    """Dumped at random moments, connected, and gone until they are revived."""
    random, steps = Random(seed), STEPS_AN_IMAGE * (images + 1)
    with (
        undisturbed(folder, steps),
        helping(folder, criu) as running,
        training(folder, "job", steps, "all", 0.005) as process,
    ):
        register(running, "job", process)
        for number in range(images):
            await_steps(folder, steps_done(folder) + random.randint(5, 40), f"seed {seed}")
            time.sleep(random.uniform(0.0, 0.01))
            ranks = {pid: started_ticks(pid) or 0 for pid in children(process.pid)}
            assert len(ranks) == WORLD and all(sockets(pid) for pid in ranks), "or no connection is tested"
            running.helper.dump("job", folder / f"image-{number}")
            if number == 0:
                process.wait()
            assert not [pid for pid, began in ranks.items() if is_alive(pid, began)]
            done = steps_done(folder)
            assert done < steps
            time.sleep(random.uniform(0.0, 0.2))
            assert steps_done(folder) == done
            running.helper.revive(folder / f"image-{number}")
            running.helper.discard(folder / f"image-{number}")
        await_steps(folder, steps, "to the end")


def test_connected_ranks_go_on_bit_for_bit_from_one_image(folder: Path, criu: Criu) -> None:
    imaged_together(folder, criu, images=2, seed=1)


@pytest.mark.hunt
@pytest.mark.timeout(400)
def test_connected_ranks_go_on_bit_for_bit_from_twenty_images(folder: Path, criu: Criu) -> None:
    imaged_together(folder, criu, images=20, seed=2)


def imaged_apart(folder: Path, criu: Criu, rounds: int) -> None:
    """They let go of their group at a step that they agree on; each is dumped alone, and they meet again."""
    steps = 50 * (rounds + 1)
    with undisturbed(folder, steps), helping(folder, criu) as running, ExitStack() as both:
        ranks = [both.enter_context(training(folder, "job", steps, str(rank), 0.01)) for rank in range(WORLD)]
        for rank, process in enumerate(ranks):
            register(running, f"job/{rank}", process)
        await_steps(folder, 10)
        with pytest.raises(Refused, match="has a TCP connection to outside its tree"):
            running.helper.dump("job/0", folder / "connected")
        for round_ in range(1, rounds + 1):
            await_steps(folder, steps_done(folder) + 10)
            (folder / "park").touch()
            await_all(folder, [f"parked-{round_}-{rank}" for rank in range(WORLD)])
            assert [sockets(process.pid) for process in ranks] == [[], []]
            done = [steps_done(folder, rank) for rank in range(WORLD)]
            for rank in range(WORLD):
                running.helper.dump(f"job/{rank}", folder / f"image-{round_}-{rank}")
            if round_ == 1:
                assert [process.wait() for process in ranks] == [-9, -9]
            (folder / "park").unlink()
            for rank in reversed(range(WORLD)):
                assert [steps_done(folder, rank) for rank in range(WORLD)] == done, "who is back waits for the other"
                running.helper.revive(folder / f"image-{round_}-{rank}")
        await_steps(folder, steps, "to the end")


def await_all(folder: Path, names: list[str]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not all((folder / name).exists() for name in names):
        assert time.monotonic() < end_s, f"waited for {names}"
        time.sleep(0.005)


def test_ranks_that_let_go_of_their_group_are_dumped_each_alone_and_meet_again_bit_for_bit(
    folder: Path, criu: Criu
) -> None:
    imaged_apart(folder, criu, rounds=1)


@pytest.mark.hunt
@pytest.mark.timeout(400)
def test_ranks_that_let_go_of_their_group_do_so_twenty_times(folder: Path, criu: Criu) -> None:
    imaged_apart(folder, criu, rounds=20)
