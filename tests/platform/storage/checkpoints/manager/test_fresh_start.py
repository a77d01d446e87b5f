"""A run that begins anew keeps what it had under another name, whole and readable."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbtide.cli.main import cli
from ebbtide.storage.checkpoints.manager.fresh_start import set_aside
from ebbtide.storage.checkpoints.run_directory.run_paths import GANG, run_paths
from ebbtide.storage.checkpoints.run_directory.run_ports import gang_leases
from ebbtide.storage.errors import Refused, TransferFailed
from tests.platform.storage.checkpoints.runs import RUN, make_run, state_at

NOW_S = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


def trained(shared: Path, step: int) -> None:
    run = make_run(shared)
    run.begin_epoch(step)
    run.save(state_at(step), epoch=step, step=step)
    run.settle()


def listed(shared: Path, name: str) -> str:
    told = CliRunner().invoke(cli, ["checkpoints", "list", name, "--shared-dir", str(shared)])
    assert told.exit_code == 0, told.output
    return told.stdout


def test_what_it_had_is_still_read_and_verified_under_the_other_name(tmp_path: Path) -> None:
    trained(tmp_path, 3)
    aside = set_aside(run_paths(tmp_path, RUN), now_s=NOW_S)
    assert aside is not None and aside.name == f"{RUN}@20231114-221320"
    assert not (tmp_path / "train" / RUN).exists()
    assert "e3/step-3" in listed(tmp_path, aside.name)
    told = CliRunner().invoke(cli, ["checkpoints", "verify", aside.name, "--shared-dir", str(tmp_path)])
    assert (told.exit_code, told.stdout) == (0, f"{aside.name} e3/step-3: whole\n")


def test_a_new_run_begins_at_the_very_beginning_and_leaves_the_old_one_alone(tmp_path: Path) -> None:
    trained(tmp_path, 3)
    aside = set_aside(run_paths(tmp_path, RUN), now_s=NOW_S)
    assert aside is not None
    run = make_run(tmp_path)
    assert run.begin_epoch(4).origin is None
    for step in range(1, 6):
        run.save(state_at(step), epoch=4, step=step)
    run.settle()
    assert "e3/step-3" in listed(tmp_path, aside.name)


@pytest.mark.proves("no run takes the place of another that was put aside")
def test_twice_within_a_second_are_two_runs_that_are_kept(tmp_path: Path) -> None:
    names = []
    for step in (1, 2, 3):
        trained(tmp_path, step)
        aside = set_aside(run_paths(tmp_path, RUN), now_s=NOW_S)
        assert aside is not None
        names.append(aside.name)
    assert len(set(names)) == 3
    assert ["e1/step-1" in listed(tmp_path, names[0]), "e3/step-3" in listed(tmp_path, names[2])] == [True, True]


def test_nothing_is_put_aside_where_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    assert set_aside(run_paths(tmp_path, RUN), now_s=NOW_S) is None
    (tmp_path / "train" / RUN).mkdir()
    assert set_aside(run_paths(tmp_path, RUN), now_s=NOW_S) is None
    assert (tmp_path / "train" / RUN).is_dir()


@pytest.mark.proves("no run is put aside under a gang that lives")
def test_a_run_is_not_put_aside_under_a_gang_that_lives(tmp_path: Path) -> None:
    trained(tmp_path, 3)
    paths = run_paths(tmp_path, RUN)
    with gang_leases(paths).hold(GANG), pytest.raises(Refused, match="stop it first"):
        set_aside(paths, now_s=NOW_S)
    assert "e3/step-3" in listed(tmp_path, RUN)


def test_a_rename_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, 3)

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(TransferFailed, match="EROFS"):
        set_aside(run_paths(tmp_path, RUN), now_s=NOW_S)
    assert "e3/step-3" in listed(tmp_path, RUN)
