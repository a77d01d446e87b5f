"""`ebbtide checkpoints`: what a job has committed is listed, checked and taken out, and misuse is told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.filesystem import FileSystemReader

from ebbtide.cli.commands import checkpoints as command
from ebbtide.cli.main import cli
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId
from ebbtide.storage.leases.object_leases import Lease
from tests.builders.checkpoints import flip
from tests.platform.storage.checkpoints.runs import RUN, make_run, state_at, step_read
from tests.platform.storage.stores import LocalLeases


def checkpoints(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["checkpoints", *arguments])


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pool in which one job has committed twice, and an older gang of it once more since."""
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    run = make_run(tmp_path)
    run.begin_epoch(1)
    run.save(state_at(1), epoch=1, step=1)
    run.save(state_at(2), epoch=1, step=2)
    run.settle()
    run.begin_epoch(2)
    run.save(state_at(3), epoch=2, step=3)
    run.settle()
    return tmp_path


def test_all_are_listed_the_newest_first(shared: Path) -> None:
    told = checkpoints("list", RUN, "--shared-dir", str(shared))
    assert told.exit_code == 0, told.output
    rows = [line.split() for line in told.stdout.splitlines()[1:] if line.strip()]
    assert [row[0] for row in rows] == ["e2/step-3", "e1/step-2"]
    listed = json.loads(checkpoints("list", RUN, "--shared-dir", str(shared), "--json").stdout)["checkpoints"]
    assert [(one["epoch"], one["step"], one["counts"], one["problem"]) for one in listed] == [
        (2, 3, True, ""),
        (1, 2, True, ""),
    ]


@pytest.mark.proves("damage is an exit code")
def test_damage_is_found_and_told(shared: Path) -> None:
    where = ("--shared-dir", str(shared))
    assert checkpoints("verify", RUN, *where).stdout == f"{RUN} e2/step-3: whole\n"
    file = shared / "train" / RUN / "e1" / "step-2" / "rank0.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.chmod(0o600)
    file.write_bytes(raw)
    assert checkpoints("verify", RUN, *where).exit_code == 0, "another one"
    told = checkpoints("verify", RUN, "--at", "2", *where)
    assert told.exit_code == 1 and "rank0.safetensors" in told.stdout
    assert checkpoints("verify", RUN, "--at", "e1/step-2", "--json", *where).exit_code == 1


def test_a_person_decides_from_where_a_job_goes_on(shared: Path) -> None:
    where = ("--shared-dir", str(shared))
    flip(shared / "train" / RUN / "e2" / "step-3" / "rank0.safetensors", 5000)
    told = checkpoints("use", RUN, "--at", "e2/step-3", *where)
    assert told.exit_code == 2 and "rank0.safetensors" in told.stderr
    told = checkpoints("use", RUN, "--at", "2", *where)
    assert told.exit_code == 0, told.output
    assert "goes on from e1/step-2" in told.stdout and "1 finished steps are lost" in told.stdout
    run = make_run(shared)
    assert run.begin_epoch(4).origin == CheckpointId(1, 2)
    assert step_read(run) == 2
    assert checkpoints("use", RUN, "--at", "e7/step-9", *where).exit_code == 2


@pytest.mark.proves("what a command on checkpoints reads is held meanwhile")
def test_what_a_command_reads_is_held_meanwhile(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job may run, and removes what it needs no more."""
    held: list[str] = []

    class Noted(LocalLeases):
        @contextmanager
        def hold(self, subject: str, *, comes_back: bool = False) -> Iterator[Lease]:
            held.append(subject)
            with super().hold(subject, comes_back=comes_back) as lease:
                yield lease

    monkeypatch.setattr(command, "run_leases", lambda paths: Noted())
    assert checkpoints("verify", RUN, "--shared-dir", str(shared)).exit_code == 0
    assert checkpoints("export", RUN, str(tmp_path / "out"), "--at", "2", "--shared-dir", str(shared)).exit_code == 0
    assert held == ["checkpoint-e2-step-3", "checkpoint-e1-step-2"]


@pytest.mark.proves("a step that does not count is refused on the command line")
def test_a_number_of_steps_means_one_that_counts(shared: Path) -> None:
    """A gang that was replaced has committed another one late."""
    aside = (shared / "train" / RUN / "e2").rename(shared / "aside")
    late = make_run(shared)
    late.save(state_at(4), epoch=1, step=4)
    late.settle()
    aside.rename(shared / "train" / RUN / "e2")
    where = ("--shared-dir", str(shared))
    assert checkpoints("verify", RUN, "--at", "e1/step-4", *where).exit_code == 0
    told = checkpoints("use", RUN, "--at", "4", *where)
    assert told.exit_code == 2 and "no checkpoint of step 4 counts" in told.stderr
    flip(shared / "train" / RUN / "e2" / "step-3" / "rank0.safetensors", 5000)
    told = checkpoints("verify", RUN, "--json", *where)
    assert told.exit_code == 1 and json.loads(told.stdout)["damage"]


def test_stock_pytorch_reads_what_was_exported(shared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = checkpoints("export", RUN, str(out), "--shared-dir", str(shared))
    assert told.exit_code == 0, told.output
    weight = torch.zeros(40, 129)
    state_dict_loader.load({"model": {"weight": weight}}, storage_reader=FileSystemReader(out), no_dist=True)
    assert torch.equal(weight, state_at(3)["model"]["weight"])
    again = checkpoints("export", RUN, str(out), "--shared-dir", str(shared))
    assert again.exit_code == 2 and "not empty" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("list", "nobody"), f"there are: {RUN}"),
        (("list", "../x"), "../x"),
        (("verify", RUN, "--at", "7"), "no checkpoint of step 7 counts"),
        (("verify", RUN, "--at", "newest"), "e<epoch>/step-<n> is expected"),
        (("verify", RUN, "--at", "9" * 5000), "e<epoch>/step-<n> is expected"),
        (("export", RUN, "gopher://x/y"), "gopher"),
    ],
)
@pytest.mark.proves(
    "a job that never ran is refused on the command line", "a number of any length is refused on the command line"
)
def test_misuse_is_told(shared: Path, arguments: tuple[str, ...], why: str) -> None:
    told = checkpoints(*arguments, "--shared-dir", str(shared))
    assert told.exit_code == 2 and why in told.stderr, told.output
