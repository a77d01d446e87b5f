"""A test is run on a product without its guard: a real pytest, in a process of its own, with all that it starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from evidence.guards.comments import ROOMS
from evidence.guards.trial import product_with

ROOT = Path(__file__).parents[3]

# The trial forks, and ends every descendant of its process: it has a process of its own here.
TRY = """
import sys
from pathlib import Path
from evidence.guards import trial
root = Path(sys.argv[1])
trial.LIBRARIES = ()
trial.load_libraries(root)
with trial.product_with(root, {"platform/ebbtide_small.py": sys.argv[2]}) as product:
    print(trial.run(product, root, ["tests/test_small.py"], limit_s=float(sys.argv[3])).verdict.name)
"""
GOOD = "def allowed(n):\n    return n < 3\n"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with one module and one test of it, in this process and in one that it starts."""
    for room in (*ROOMS, "tests"):
        (tmp_path / room).mkdir()
    (tmp_path / "platform" / "ebbtide_small.py").write_text(GOOD)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "tests" / "test_small.py").write_text(
        "import subprocess, sys\n"
        "from ebbtide_small import allowed\n"
        "def test_small():\n"
        "    assert allowed(2) and not allowed(3)\n"
        "    code = 'from ebbtide_small import allowed; raise SystemExit(not allowed(2) or allowed(3))'\n"
        "    assert subprocess.run([sys.executable, '-c', code]).returncode == 0\n"
    )
    return tmp_path


def verdict(small: Path, source: str, limit_s: float = 60.0) -> str:
    words = [sys.executable, "-c", TRY, str(small), source, str(limit_s)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "source, said",
    [
        (GOOD, "PASSED"),
        ("def allowed(n):\n    return not n < 3\n", "CAUGHT"),
        ("import sys\ndef allowed(n):\n    return n < 3 or 'pytest' not in sys.modules\n", "CAUGHT"),
        ("import no_such_module\n", "BROKEN"),
    ],
)
def test_the_verdict_is_what_the_test_said_of_the_changed_module(small: Path, source: str, said: str) -> None:
    assert verdict(small, source) == said


def test_one_that_does_not_end_hung(small: Path) -> None:
    assert verdict(small, "while True: pass\n", limit_s=3.0) == "HUNG"


def test_a_copy_changes_nothing_of_the_product(small: Path) -> None:
    with product_with(small, {"platform/ebbtide_small.py": "x = 1\n"}) as product:
        assert (product / "platform" / "ebbtide_small.py").read_text() == "x = 1\n"
    assert not product.exists()
    assert (small / "platform" / "ebbtide_small.py").read_text() == GOOD
