"""Train functions are found without running a line of the job."""

import os
import sys
from pathlib import Path

import pytest

from ebbtide.config.checks.entrypoint import entrypoint_fault

SOURCE = """\
raise SystemExit("the module was run")
import contextlib
from functools import partial as ready_made
if True:
    def conditional(): ...
try:
    import fast
except ImportError:
    def fallback(): ...
assigned, also = ready_made(print), 1
def train(session): ...
async def later(session): ...
class Trainer: ...
"""


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(SOURCE)
    (tmp_path / "pack" / "inner").mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").write_text("raise SystemExit('the package was run')\n")
    (tmp_path / "pack" / "inner" / "job.py").write_text("def train(session): ...\n")
    (tmp_path / "stars.py").write_text("from job import *\n")
    (tmp_path / "broken.py").write_text("def train(:\n")
    (tmp_path / "nulls.py").write_bytes(b"a = 1\0\n")
    return tmp_path


@pytest.mark.parametrize(
    "entrypoint",
    [
        "job:train", "job:conditional", "job:fallback", "job:fast", "job:assigned", "job:also", "job:ready_made",
        "pack.inner.job:train", "stars:anything", "json:dumps", "math:sin",
    ],
)  # fmt: skip
def test_a_function_that_can_be_imported_passes(job_dir: Path, entrypoint: str) -> None:
    before = set(sys.modules)
    fault = entrypoint_fault(entrypoint, working_dir=job_dir)
    assert {"job", "pack", "stars"}.isdisjoint(set(sys.modules) - before)
    assert fault is None


@pytest.mark.parametrize(
    ("entrypoint", "message", "hint"),
    [
        ("job:trian", "job.py defines no 'trian'", "did you mean 'train'?"),
        ("job:later", "'later' is a coroutine function", None),
        ("job:Trainer", "'Trainer' is a class", None),
        ("jobs:train", "there is no module 'jobs' in", None),
        ("job.inner:train", "there is no module 'job.inner'", None),
        ("pack.outer.job:train", "there is no module 'pack.outer.job'", None),
        ("pack.inner:train", "'pack.inner' is a package without code", None),
        ("broken:train", "broken.py, line 1: ", None),
        ("nulls:train", "nulls.py", None),
    ],
)
def test_one_that_cannot_is_told(job_dir: Path, entrypoint: str, message: str, hint: str | None) -> None:
    fault = entrypoint_fault(entrypoint, working_dir=job_dir)
    assert fault is not None and message in fault[0] and fault[1] == hint, fault


def test_a_file_written_a_moment_ago_is_seen_on_filesystems_with_coarse_times(tmp_path: Path) -> None:
    before = tmp_path.stat()
    assert entrypoint_fault("late:train", working_dir=tmp_path) is not None
    (tmp_path / "late.py").write_text("def train(session): ...\n")
    os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert entrypoint_fault("late:train", working_dir=tmp_path) is None


def test_without_a_working_directory_only_the_import_path_counts(job_dir: Path) -> None:
    fault = entrypoint_fault("stars:train", working_dir=None)
    assert fault is not None and "is working_dir missing?" in fault[0]
    assert entrypoint_fault("ebbtide.config.loading.pool_file_loader:load", working_dir=None) is None
