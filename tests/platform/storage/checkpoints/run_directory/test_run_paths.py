"""Names in a run's directory: each thing has one, and none leads out of it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId, epoch_of, run_paths, step_of
from ebbtide.storage.errors import Refused

NUMBERS = st.integers(0, 10**18 - 1)


@settings(deadline=None)
@given(NUMBERS, NUMBERS)
def test_a_name_leads_back_to_its_checkpoint(epoch: int, step: int) -> None:
    one = CheckpointId(epoch, step)
    assert CheckpointId.parse(str(one)) == one
    assert (epoch_of(f"e{epoch}"), step_of(f"step-{step}")) == (epoch, step)


@pytest.mark.parametrize("number", ["01", "-1", "", "1 ", " 1", "١", "1.5", "1" + "0" * 18, "1\n", "0x1", "1e1", "+1"])
@pytest.mark.proves("numbers in names have one spelling")
def test_a_number_that_is_not_written_as_we_write_it_means_nothing(number: str) -> None:
    assert epoch_of(f"e{number}") is None
    assert step_of(f"step-{number}") is None


@pytest.mark.parametrize("name", ["E1", ".e1", "epoch1", "1", "Step-1", "step1", ".tmp-step-1"])
def test_other_names_mean_nothing(name: str) -> None:
    assert epoch_of(name) is None
    assert step_of(name) is None


@pytest.mark.parametrize("text", ["", "e1", "step-1", "e1/step-", "e1/step-1/x", "../e1/step-1", "e1/STEP-1"])
def test_what_names_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="names no checkpoint"):
        CheckpointId.parse(text)


@pytest.mark.parametrize(("epoch", "step"), [(-1, 0), (0, -1), (10**18, 0), (True, 1), (1.0, 1)])
def test_numbers_that_are_none_are_refused(epoch: int, step: int) -> None:
    with pytest.raises(Refused, match="whole number"):
        CheckpointId(epoch, step)


@pytest.mark.parametrize("run", ["", ".", "..", "a/b", "/etc", "a\0b", ".hidden", "a" * 300, "-x", "ü"])
@pytest.mark.proves("a name stays in the store's directory")
def test_no_name_of_a_run_leads_out_of_the_shared_directory(run: str) -> None:
    with pytest.raises(Refused):
        run_paths(Path("shared"), run)


def test_the_layout_is_what_is_promised() -> None:
    paths = run_paths(Path("shared"), "my-run")
    assert paths.checkpoint(CheckpointId(3, 100)) == Path("shared/train/my-run/e3/step-100")
    assert paths.work(CheckpointId(3, 100)).name.startswith(".tmp-")
    assert paths.removed(CheckpointId(3, 100)).parent == paths.epoch(3)
