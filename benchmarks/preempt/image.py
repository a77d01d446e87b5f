"""CRIU alone: a process that knows nothing of anything is put into an image and brought back, by the program itself."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from benchmarks.preempt.events import Event, Story, line, say
from benchmarks.preempt.state import LAST_STEP, make, plain_step

VARIABLE = "EBBTIDE_CRIU"
IN_CHECKOUT = Path(".criu") / "criu"
TIMEOUT_S = 600.0
_POLL_S = 0.005
_TOLD, _ERRORS, _GO, _IMAGES, _PID = "told", "errors", "go", "images", "pid"


def find(environment: Mapping[str, str], checkout: Path) -> tuple[Path | None, str]:
    """The program, or None and why there is none that works here."""
    given = environment.get(VARIABLE) or shutil.which("criu", path=environment.get("PATH"))
    path = Path(given) if given else checkout / IN_CHECKOUT
    if not path.is_file():
        return None, f"there is no CRIU (looked for ${VARIABLE}, criu in PATH, {IN_CHECKOUT})"
    done = subprocess.run([path, "check"], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        words = (done.stdout + done.stderr).strip().splitlines()
        return None, f"`{path.name} check` failed: {words[-1][:200] if words else done.returncode}"
    return path, ""


def train(folder: Path, size_bytes: int) -> None:
    """As a process: train, and then take the last step when a file is there. Nothing is agreed with anybody."""
    model, optimizer = make(size_bytes)
    for number in range(LAST_STEP):
        plain_step(model, optimizer, number)
    say(Event.READY)
    while not (folder / _GO).exists():
        time.sleep(_POLL_S)
    say(Event.LOSS, value=plain_step(model, optimizer, LAST_STEP))
    os._exit(0)


def dump_and_restore(
    criu: Path, folder: Path, size_bytes: int, environment: Mapping[str, str], forget: Callable[[list[Path]], None]
) -> Story:
    """One preemption.

    Args:
        criu: the program.
        folder: empty.
        size_bytes: of the state.
        environment: of the process.
        forget: has the page cache forget the files.

    Raises:
        RuntimeError: something ended badly.
    """
    (folder / _IMAGES).mkdir()
    command = [sys.executable, "-m", "benchmarks.preempt.child", "train", str(folder), str(size_bytes)]
    with (folder / _TOLD).open("w") as told, (folder / _ERRORS).open("w") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=told, stderr=errors, start_new_session=True, env=environment
        )
    pid = child.pid
    try:
        _wait(folder, Event.READY, lambda: child.poll() is None)
        lines = [line(Event.DECISION), line(Event.SAFE_POINT)]  # it may be stopped anywhere
        _criu(criu, folder, "dump", "-t", str(pid))
        child.wait(TIMEOUT_S)
        lines.append(line(Event.FREE))
        files = [path for path in (folder / _IMAGES).iterdir() if path.is_file()]
        for path in files:
            _sync(path)
        lines.append(line(Event.DURABLE))
        forget(files)
        lines.append(line(Event.ASKED))
        _criu(criu, folder, "restore", "-d", "--pidfile", str(folder / _PID))
        lines.append(line(Event.RUNNING))
        (folder / _GO).touch()
        _wait(folder, Event.LOSS, lambda: _lives(pid))
    finally:
        _end(pid, folder)
        child.wait()
    return Story.of([*lines, *(folder / _TOLD).read_text().splitlines()])


def _criu(criu: Path, folder: Path, verb: str, *more: str) -> None:
    words = [str(criu), verb, "-D", str(folder / _IMAGES), "-o", f"{verb}.log", "-v2", *more]
    with (folder / f"{verb}.out").open("w") as out:  # not a pipe: what is restored would hold it
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        log = folder / _IMAGES / f"{verb}.log"
        said = [one for one in log.read_text(errors="replace").splitlines() if "Error" in one] if log.exists() else []
        raise RuntimeError(f"criu {verb} gave {done.returncode}: {' / '.join(said[-2:])[:300]}")


def _wait(folder: Path, event: Event, lives: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while f'"{event.value}"' not in (folder / _TOLD).read_text():
        if not lives() and f'"{event.value}"' not in (folder / _TOLD).read_text():
            raise RuntimeError(f"it ended before it was {event.value}: {(folder / _ERRORS).read_text()[-300:]}")
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"it was not {event.value} within {TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)


def _end(pid: int, folder: Path) -> None:
    """Kill it, the first one or what was restored, if it is still there: the number alone may mean somebody else."""
    with suppress(OSError):
        if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
