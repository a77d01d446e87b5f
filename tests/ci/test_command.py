"""A command ends with all that it started, however its descendants try to get away."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Leaves its session, its parent and its signals behind: as a raylet does whose driver was killed.
DAEMON = """
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""

# `ci.command` ends every descendant of its process, so it has a process of its own here.
RUN = """
import json, sys
from pathlib import Path
from ci import command
ended = command.run(sys.argv[3:], limit_s=float(sys.argv[1]), log=Path(sys.argv[2]))
print(json.dumps([ended.code, list(ended.left)]))
"""


def run(tmp_path: Path, code: str, *, limit_s: float = 60.0) -> tuple[int | None, list[str]]:
    import json

    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    (tmp_path / "daemon.py").write_text(DAEMON)
    words = [sys.executable, "-c", RUN, str(limit_s), str(tmp_path / "log"), sys.executable, str(script)]
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    ended, left = json.loads(done.stdout)
    return ended, left


def daemon_is_gone(tmp_path: Path) -> bool:
    pid = int((tmp_path / "pid").read_text())
    return not Path(f"/proc/{pid}").exists()


def test_what_ends_by_itself_says_how_and_left_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "print('hello'); raise SystemExit(3)") == (3, [])
    assert (tmp_path / "log").read_text() == "hello\n"


def test_what_a_command_leaves_behind_is_ended_and_told(tmp_path: Path) -> None:
    code, left = run(
        tmp_path,
        """
        import subprocess, sys, time
        from pathlib import Path
        subprocess.run([sys.executable, "daemon.py", "pid"])
        while not (Path("pid").exists() and Path("pid").read_text()):
            time.sleep(0.01)
        """,
    )
    assert code == 0
    assert [line.partition(" ")[2].endswith("daemon.py pid") for line in left] == [True]
    assert daemon_is_gone(tmp_path)


def test_an_orphan_that_ends_vanishes_while_the_command_runs(tmp_path: Path) -> None:
    code, left = run(
        tmp_path,
        """
        import os, subprocess, sys, time
        orphan = "import os, sys; os.fork() and os._exit(0); open('pid', 'w').write(str(os.getpid()))"
        subprocess.run([sys.executable, "-c", orphan])
        deadline_s = time.monotonic() + 20
        while not os.path.exists("pid") or not open("pid").read():
            time.sleep(0.01)
        while os.path.exists("/proc/" + open("pid").read()):
            assert time.monotonic() < deadline_s, "it stays as a zombie"
            time.sleep(0.01)
        """,
    )
    assert (code, left) == (0, [])


def test_what_hangs_is_cut_off_with_its_descendants(tmp_path: Path) -> None:
    began_s = time.monotonic()
    code, left = run(
        tmp_path,
        """
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.run([sys.executable, "daemon.py", "pid"])
        time.sleep(600)
        """,
        limit_s=3.0,
    )
    assert (code, left) == (None, [])
    assert daemon_is_gone(tmp_path)
    assert time.monotonic() - began_s < 60


def test_what_is_cut_off_may_end_its_own_things_first(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        import time
        from pathlib import Path
        import signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            time.sleep(600)
        finally:
            Path("tidy").write_text("yes")
        """,
        limit_s=3.0,
    )
    assert (tmp_path / "tidy").read_text() == "yes"


def test_a_command_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    from ci import command

    with pytest.raises(FileNotFoundError):
        command.run(["/no/such/command"], limit_s=1.0, log=tmp_path / "log")
    assert signal.getsignal(signal.SIGTERM) is not None
