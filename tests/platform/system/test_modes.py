"""A mode is told once by each process, on stderr, whatever its logging is; and the GPU line finds it there."""

import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.line.logs import modes
from ebbtide.system.modes import LIMIT, Place

TELLS = """
import logging, sys
from ebbtide.system.modes import Place, took
logging.disable(logging.DEBUG)
for _ in range(3):
    took(Place.PAGE_LOCKING, "registered\\n  5 bytes")
took(Place.PAGE_LOCKING, "none: " + "x" * 1000)
took(Place.NVML, "none")
"""


def test_a_mode_is_told_once_and_found(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TELLS], capture_output=True, text=True, check=True)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 3
    (tmp_path / "worker.err").write_text(done.stderr)
    found = modes([tmp_path])
    assert found == {
        "page-locking": ["registered 5 bytes", ("none: " + "x" * 1000)[:LIMIT]],
        "nvml": ["none"],
    }


def test_every_place_can_be_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("".join(f"ebbtide mode: {place} = x\n" for place in Place))
    assert set(modes([tmp_path])) == {str(place) for place in Place}
