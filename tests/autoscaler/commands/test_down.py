"""`ebbtide down` where there is nothing to take down, or nothing on record of what there is."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ebbtide.cli.main import cli
from ebbtide.client.cluster_record import ClusterRecord, forget_cluster, save_cluster
from ebbtide_autoscaler.cluster import local_cluster
from ebbtide_autoscaler.cluster.cluster_processes import MARK

POOL = f"downs{os.getpid()}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path))
    yield tmp_path
    shutil.rmtree(local_cluster.runtime_dir(POOL), ignore_errors=True)


def down(*words: str) -> Result:
    return CliRunner().invoke(cli, ["down", *words])


def test_twice_is_no_error(home: Path) -> None:
    save_cluster(ClusterRecord(POOL, "127.0.0.1:9", "", "", str(home / "shared"), ""))
    forget_cluster(POOL)
    found = down("--pool", POOL)
    assert (found.exit_code, found.output) == (0, f"pool {POOL} is down already\n")
    assert (down().exit_code, down().output) == (0, "no pool is on record here: all are down already\n")
    assert json.loads(down("--pool", POOL, "--json").output) == {"pool": POOL, "down": True, "already": True}


def test_a_pool_that_never_was_here_is_a_wrong_name() -> None:
    found = down("--pool", "misspelt")
    assert found.exit_code == 2 and "no running pool misspelt is on record" in found.output


def test_a_record_that_cannot_be_read_is_not_taken_for_down(home: Path) -> None:
    save_cluster(ClusterRecord(POOL, "127.0.0.1:9", "", "", str(home / "shared"), ""))
    (home / POOL / "cluster.json").write_text("{")
    found = down()
    assert found.exit_code == 2 and "cannot be read" in found.output


@pytest.mark.parametrize("words", [(), ("--pool", POOL)])
def test_what_a_killed_up_left_is_ended(words: tuple[str, ...], home: Path) -> None:
    local_cluster.own(POOL, f"{home.resolve()} {home / 'shared'}")
    mark = str(local_cluster.runtime_dir(POOL) / "ray-123456")
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, MARK: mark})
    try:
        found = down(*words)
        assert found.exit_code == 0, found.output
        assert f"pool {POOL}: ended 1 processes of an `ebbtide up` that did not come to its end" in found.output
        assert left.wait(5) == -15
    finally:
        left.kill()
        left.wait()


def test_without_any_home_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("EBBTIDE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    found = down("--pool", POOL)
    assert found.exit_code == 2 and "set EBBTIDE_HOME to a folder" in found.output
