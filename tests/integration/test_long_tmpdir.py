"""`ebbtide up` under a batch system's long TMPDIR works, says where the sockets are, and leaves nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide_autoscaler.cluster import local_cluster
from tests.integration.conftest import a_free_port

pytestmark = [pytest.mark.ray, pytest.mark.timeout(200)]


def test_a_long_tmpdir_is_said_and_does_no_harm(tmp_path: Path) -> None:
    long = tmp_path / "slurm_jobdir_of_a_rather_long_account_name" / "1355700" / "tmp.node0016" / "local-scratch"
    long.mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    file = tmp_path / "pool.yaml"
    # The longest name that a pool may have; a folder of it would have no room for Ray's sockets either.
    name = f"t{os.getpid()}-".ljust(63, "x")
    file.write_text(f"pool: {{name: {name}, slots: 1, shared_dir: shared}}\ngateway: {{port: {a_free_port()}}}\n")
    proxy = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:9")
    without = {key: value for key, value in os.environ.items() if key.lower() != "no_proxy"}
    env = {**without, "TMPDIR": str(long), "EBBTIDE_HOME": str(tmp_path / "home"), **proxy}
    ebbtide = [sys.executable, "-m", "ebbtide.cli"]
    done = subprocess.run([*ebbtide, "up", str(file)], env=env, capture_output=True, text=True, timeout=150)
    try:
        assert done.returncode == 0, done.stderr
        assert f"TMPDIR={long} is too long for sockets" in done.stderr
        assert list(long.iterdir()) == []
        shell = subprocess.run([*ebbtide, "env"], env=env, capture_output=True, text=True, timeout=60).stdout
        assert "export no_proxy=" in shell
    finally:
        down = subprocess.run([*ebbtide, "down"], env=env, capture_output=True, text=True, timeout=60)
    assert down.returncode == 0, down.stderr
    assert local_cluster.strangers(name) == ()
