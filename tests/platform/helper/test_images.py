"""Images of real processes, by real CRIU: what was dumped goes on where it stopped, or nothing was touched."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide.helper.client import Helper
from ebbtide.helper.criu.program import Criu
from ebbtide.helper.errors import Refused
from tests.platform.helper.trees import Counting, Running, counting, end, helping

NAME = "session/a"


def dump(running: Running, tree: Counting, image: Path) -> None:
    """Register and dump, and see that it is gone."""
    running.register(tree)
    made = running.helper.dump(NAME, image)
    assert made.name == NAME and made.image_bytes > 0
    assert tree.process.wait() == -9 and tree.stands_still()


@pytest.mark.parametrize("extra", ["", "child", "pipe", "socketpair", "listen", "udp"])
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


TRAINING = Path(__file__).with_name("training.py")


def test_a_training_process_goes_on_bit_for_bit(folder: Path, criu: Criu) -> None:
    def start(out: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(TRAINING), str(folder / out), "120"],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=(folder / "log").open("ab"), stderr=subprocess.STDOUT,
            start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    with start("undisturbed") as undisturbed, helping(folder, criu) as running:
        process = start("parked")
        try:
            train_to_the_end(running.helper, process, folder)
        finally:
            end(process.pid)
            process.wait()
        assert undisturbed.wait(60) == 0
    assert (folder / "parked").read_bytes() == (folder / "undisturbed").read_bytes()


def train_to_the_end(helper: Helper, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Dump and revive it twice on its way."""
    from ebbtide.agent.process import started_ticks
    from tests.platform.helper.trees import wait_until

    def steps() -> int:
        return (folder / "parked").read_bytes().count(b"\n") if (folder / "parked").exists() else 0

    wait_until(lambda: steps() > 10)
    helper.register("train", process.pid, started_ticks(process.pid) or 0)
    for number in (1, 2):
        helper.dump("train", folder / str(number))
        process.wait()
        before = steps()
        assert 10 < before < 120
        helper.revive(folder / str(number))
        wait_until(lambda before=before: steps() > before + 5)  # type: ignore[misc]
    wait_until(lambda: not helper.state("train")[0].alive)
