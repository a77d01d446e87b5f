"""Images of real processes, by real CRIU: what was dumped goes on where it stopped, or nothing was touched."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ebbtide.helper.criu.criu_program import Criu
from ebbtide.helper.errors import Refused
from ebbtide.system.process import started_ticks
from tests.platform.helper.trees import Counting, Running, counting, end, helping

NAME = "session/a"


def dump(running: Running, tree: Counting, image: Path) -> None:
    """Register and dump, and see that it is gone."""
    running.register(tree)
    made = running.helper.dump(NAME, image)
    assert made.name == NAME and made.image_bytes > 0
    assert tree.process.wait() == -9 and tree.stands_still()


@pytest.mark.parametrize("extra", ["", "child,pipe,socketpair,listen,udp", "tcp", "tcp6"])
def test_a_tree_goes_on_where_it_stopped(folder: Path, criu: Criu, extra: str) -> None:
    with helping(folder, criu) as running, counting(folder, str(1 << 60), extra) as tree:
        dump(running, tree, folder / "image")
        [where] = running.helper.state(NAME)
        assert (where.standing, where.alive, where.image_dir) == ("dumped", False, str(folder / "image"))
        revived = running.helper.revive(folder / "image")
        assert (revived.pid, revived.generation, revived.alive) == (tree.pid, 2, True)
        assert revived.started > tree.started
        tree.goes_on()
        assert running.helper.state(NAME)[0].standing == "live"
        with pytest.raises(Refused, match="pids that processes have now"):
            running.helper.revive(folder / "image")
        running.helper.dump(NAME, folder / "again")
        running.helper.discard(folder / "image")
        running.helper.revive(folder / "again")
        tree.goes_on()


def test_an_image_can_be_copied_and_brought_back_from_there_by_another_helper(folder: Path, criu: Criu) -> None:
    (folder / "other").mkdir(mode=0o700)
    with counting(folder) as tree:
        with helping(folder, criu) as running:
            dump(running, tree, folder / "image")
        shutil.copytree(folder / "image", folder / "other" / "copy")
        shutil.rmtree(folder / "image")
        with helping(folder / "other", criu) as elsewhere:
            assert elsewhere.helper.revive(folder / "other" / "copy").pid == tree.pid
            tree.goes_on()
            elsewhere.helper.discard(folder / "other" / "copy")
            assert elsewhere.helper.state(NAME)[0].alive
            assert not (folder / "other" / "copy").exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_training_process_goes_on_bit_for_bit(folder: Path, criu: Criu, ranks: int) -> None:
    """One rank; and two that exchange their gradients, dumped in the middle of it and gone until they are revived."""
    steps, out = 120, folder / "parked"
    with (folder / "log").open("ab") as log, helping(folder, criu) as running:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("training.py")), str(folder), str(steps), str(ranks)],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            running.helper.register("train", process.pid, started_ticks(process.pid) or 0)
            await_lines(out, 20)
            running.helper.dump("train", folder / "image")
            process.wait()
            done = lines(out)
            assert 20 <= done < steps - 20
            running.helper.revive(folder / "image")
            await_lines(out, steps)
            for rank in range(1, ranks):
                await_lines(folder / f"parked-{rank}", steps)
        finally:
            process.kill()
            end(process.pid)
            process.wait()
    for end_of_name in ("", "-1")[:ranks]:
        assert (folder / f"parked{end_of_name}").read_bytes() == (folder / f"undisturbed{end_of_name}").read_bytes()


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def await_lines(path: Path, count: int) -> None:
    end_s = time.monotonic() + 90  # a loaded machine needs half a minute to import torch
    while lines(path) < count:
        assert time.monotonic() < end_s
        time.sleep(0.005)
