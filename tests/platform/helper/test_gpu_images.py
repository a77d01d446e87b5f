"""Images of trees that use a GPU: taken off it first, brought back only where driver and chip are the same ones."""

import json
import os
from pathlib import Path

import pytest

from ebbtide.helper.criu.criu_program import Criu
from ebbtide.helper.criu.image import read_manifest
from ebbtide.helper.criu.machine_profile import Gpus
from ebbtide.helper.errors import Refused
from ebbtide.helper.journal.journal_file import Journal
from ebbtide.helper.journal.journal_state import JournalState, Line
from ebbtide.helper.journal.operation import Tool
from ebbtide.helper.journal.workload_states import Op, Step
from ebbtide.helper.operations.image_revival import check_revive
from ebbtide.storage.files.durable_files import Disk
from ebbtide.system.process import boot_id
from ebbtide_testing.gpu_driver.fake_driver import machine_of
from ebbtide_testing.gpu_driver.fake_driver_state import open_state
from ebbtide_testing.gpu_driver.fake_users import users_of
from tests.platform.helper.made_up import HERE, NO_CRIU, image
from tests.platform.helper.trees import counting, helping

NAME = "session/a"
H, A = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
THERE = Gpus(driver="CUDA 13.0, kernel driver 580.95.05", chips={"GPU-1": H, "GPU-2": H})


def says(fake: Path, gpus: dict[str, str], driver: str = THERE.driver) -> None:
    """What the fake driver's machine has."""
    machine_of(fake).write_text(json.dumps({"driver": driver, "gpus": gpus}))


def test_a_tree_on_a_gpu_becomes_an_image_off_it_and_goes_on_on_another_machines_gpu(folder: Path, criu: Criu) -> None:
    fake = folder / "driver"
    users_of(fake).mkdir()
    says(fake, dict(THERE.chips))
    words = ("--fake-driver", str(fake))
    with counting(folder, str(1 << 60), "gpu", str(users_of(fake))) as tree:
        with helping(folder, criu, *words) as running:
            helper = running.helper
            running.register(tree)
            with pytest.raises(Refused, match=r"is on a GPU \(running\); take it off first"):
                helper.dump(NAME, folder / "image")
            tree.goes_on()
            helper.lock([NAME])
            helper.checkpoint([NAME])
            helper.dump(NAME, folder / "image")
            tree.process.wait()
            assert read_manifest(folder / "image").machine.gpu == THERE
        says(fake, {"GPU-8": H, "GPU-9": H})
        with helping(folder, criu, *words) as running:
            helper = running.helper
            assert helper.revive(folder / "image").driver == ""
            assert helper.state(NAME)[0].driver == "checkpointed", "its memory came back, and is on no GPU"
            with pytest.raises(Refused, match=r"GPUs of another machine.*say which one becomes which"):
                helper.restore([NAME])
            with pytest.raises(Refused, match="no GPU GPU-2"):
                helper.restore([NAME], {"GPU-1": "GPU-2"})
        with helping(folder, criu, *words) as running:  # the journal knows, whoever reads it
            helper = running.helper
            helper.restore([NAME], {"GPU-1": "GPU-9"})
            helper.unlock([NAME])
            with open_state(fake) as book:
                assert list(book.gpus.values()) == [{"GPU-1": "GPU-9", "GPU-2": "GPU-8"}], "a pair for each GPU there"
            tree.goes_on()
            helper.lock([NAME])
            helper.checkpoint([NAME])
            helper.restore([NAME])  # it is at home here now
            helper.unlock([NAME])


def test_an_image_of_a_tree_that_uses_no_gpu_depends_on_none(folder: Path, criu: Criu) -> None:
    fake = folder / "driver"
    users_of(fake).mkdir()
    says(fake, dict(THERE.chips))
    with (
        helping(folder, criu, "--fake-driver", str(fake)) as running,
        counting(folder, str(1 << 60), "child", "") as tree,
    ):
        running.register(tree)
        running.helper.dump(NAME, folder / "image")
        tree.process.wait()
        assert read_manifest(folder / "image").machine.gpu is None
        running.helper.revive(folder / "image")
        assert running.helper.state(NAME)[0].driver == "unused"


@pytest.mark.parametrize(
    ("here", "what"),
    [
        (None, "no GPU driver here puts processes back"),
        (Gpus(driver="CUDA 13.1, kernel driver 590.44.01", chips={"GPU-3": H}), "here is CUDA 13.1, kernel driver 590"),
        (Gpus(driver=THERE.driver, chips={"GPU-3": A}), f"made with {H}, here is {A}"),
        (Gpus(driver=THERE.driver, chips={}), f"made with {H}, here is no GPU"),
    ],
)
def test_an_image_of_another_driver_or_chip_is_refused_with_what_would_work(
    folder: Path, here: Gpus | None, what: str
) -> None:
    made = image(folder, machine=HERE.model_copy(update={"gpu": THERE}))
    with pytest.raises(Refused, match=what) as refused:
        check_revive(made, Tool(NO_CRIU.criu, HERE.model_copy(update={"gpu": here})))
    assert f"a node with Linux, CRIU 4.2, {THERE.driver} and {H}" in refused.value.remedy


def test_the_same_driver_and_chip_is_enough_and_without_a_gpu_nothing_is_asked(folder: Path) -> None:
    more = Gpus(driver=THERE.driver, chips={"GPU-7": A, "GPU-8": H})
    made = image(folder, machine=HERE.model_copy(update={"gpu": THERE}))
    assert check_revive(made, Tool(NO_CRIU.criu, HERE.model_copy(update={"gpu": more}))).machine.gpu == THERE
    (folder / "plain").mkdir()
    plain = image(folder / "plain")
    assert '"gpu":null' in plain.joinpath("manifest.json").read_text().replace(" ", "")
    assert check_revive(plain, Tool(NO_CRIU.criu, HERE)).machine == HERE


def test_where_a_tree_left_its_gpus_is_kept_until_it_is_on_some_again(folder: Path) -> None:
    def line(op: Op, step: Step, operation: str, **facts: object) -> Line:
        return Line(
            at_s=0.0, operation=operation, op=op, step=step, name="a", pid=5, started=7, boot=boot_id(), generation=1,
            uid=os.geteuid(), facts=facts,
        )  # fmt: skip

    def gpus() -> dict[str, str]:
        again = JournalState()
        for one in journal.book.lines():
            again = again.apply(one)
        assert again == journal.book
        return dict(journal.book.entries["a"].gpus)

    journal = Journal(folder / "state", Disk())
    try:
        journal.write(line(Op.REVIVE, Step.INTENT, "revive-1", image_dir="/image"))
        journal.write(line(Op.REVIVE, Step.SPAWNED, "revive-1"))
        journal.write(line(Op.REVIVE, Step.RESTORED, "revive-1"))
        journal.write(line(Op.REVIVE, Step.DONE, "revive-1", gpus=THERE.chips))
        assert gpus() == THERE.chips
        for step in (Step.INTENT, Step.UNDONE):
            journal.write(line(Op.RESTORE, step, "restore-1"))
        assert gpus() == THERE.chips, "it was not put back"
        for step in (Step.INTENT, Step.DONE):
            journal.write(line(Op.RESTORE, step, "restore-2"))
        assert gpus() == {}
    finally:
        journal.close()
