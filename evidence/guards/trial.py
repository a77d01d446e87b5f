"""Runs a test on a copy of the product from which one guard was taken out.

The copy is made of hard links; only the module of the guard is written anew. Each run is a fork of this process, which
has loaded the libraries and none of the product: a run costs the test and no second of imports. Whatever a run has
started is ended after it.
"""

import compileall
import faulthandler
import importlib
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from evidence.family import adopt_orphans, end_descendants, wait_for
from evidence.guards.comments import ROOMS

LIMIT_S = 120.0  # the slowest test that proves a guard takes some 20 s; without its guard one may wait for ever
LIBRARIES = (
    *("hypothesis", "numpy", "psutil", "pydantic", "yaml", "aiohttp", "httpx", "openai", "fastapi", "uvicorn"),
    *("schemathesis", "torch", "torch.distributed.tensor", "ray", "pytest_asyncio"),
)
LOADED_BEFORE = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # of plugins among the libraries
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


class Verdict(Enum):
    """What a test said of the product without a guard."""

    CAUGHT = "caught"  # the test failed
    HUNG = "hung"  # it did not end within the limit, so it did not pass
    PASSED = "passed"  # the test passed, so it proves nothing
    BROKEN = "broken"  # the test could not be run

    @property
    def proves(self) -> bool:
        """Whether the test noticed that the guard was gone."""
        return self in (Verdict.CAUGHT, Verdict.HUNG)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run: the verdict, and the end of what pytest printed."""

    verdict: Verdict
    printed: str
    seconds: float


def load_libraries(root: Path) -> None:
    """Load what most tests import and compile the rooms of ``root``, once for all runs; adopt what they leave behind.

    Where bytecode may not be written, each run would compile what it imports: some 3 s of CPU instead of 0.2.
    """
    os.environ.update(ONE_THREAD)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for room in ROOMS:
        compileall.compile_dir(root / room, quiet=1)
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    adopt_orphans()


@contextmanager
def product_with(root: Path, changed: Mapping[str, str]) -> Iterator[Path]:
    """A copy of the rooms of ``root`` in which the files of ``changed`` have another source."""
    with tempfile.TemporaryDirectory(prefix=".guards-", dir=root / "out" if (root / "out").is_dir() else root) as name:
        folder = Path(name)
        for room in ROOMS:
            shutil.copytree(root / room, folder / room, copy_function=os.link)
        for file, source in changed.items():
            (folder / file).unlink()
            (folder / file).write_text(source)
        yield folder


def run(product: Path, root: Path, tests: Sequence[str], *, limit_s: float = LIMIT_S) -> Outcome:
    """Run ``tests`` of ``root`` until one fails, with the rooms of ``product`` first on the path."""
    with tempfile.TemporaryFile() as printed:
        began_s = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _be_pytest(printed.fileno(), product, root, tests)
        code = wait_for(pid, limit_s)
        end_descendants()
        seconds = time.monotonic() - began_s
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    if code is None:
        return Outcome(Verdict.HUNG, text, seconds)
    verdicts = {pytest.ExitCode.OK: Verdict.PASSED, pytest.ExitCode.TESTS_FAILED: Verdict.CAUGHT}
    return Outcome(verdicts.get(code, Verdict.BROKEN), text, seconds)  # type: ignore[call-overload]


def _be_pytest(printed: int, product: Path, root: Path, tests: Sequence[str]) -> None:
    code: int = 70  # EX_SOFTWARE, sysexits.h: pytest has no such code
    try:
        os.setsid()
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        faulthandler.enable()
        rooms = [str(product / room) for room in ROOMS]
        loaded = {path.name for room in ROOMS for path in (product / room).iterdir()} & sys.modules.keys()
        assert not loaded, f"{loaded} of the product as it is are loaded already: nothing would be taken out"
        sys.path[:0] = rooms
        os.environ["PYTHONPATH"] = os.pathsep.join([*rooms, str(root)])
        os.chdir(root)
        quiet = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", *LOADED_BEFORE]
        code = int(pytest.main([*quiet, *tests]))
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
