"""The node agent as a Ray actor."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


@pytest.mark.ray
def test_the_agent_reports_and_kills_and_comes_back_after_its_own_death(tmp_path: Path) -> None:
    program = Path(__file__).with_name("agent_on_ray.py")
    temp_dir = tempfile.mkdtemp(prefix="ea", dir="/tmp")  # short: Ray's socket paths must stay under 107 bytes
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path / "locks"), temp_dir],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        told = process.communicate(timeout=240)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        shutil.rmtree(temp_dir, ignore_errors=True)
    assert process.returncode == 0 and told.endswith("all seen\n"), told
