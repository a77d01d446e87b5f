"""The rehearsal's last act: an image of a small process is made, the process ends, and comes back from its image.

The process knows its bytes by a hash; it is asked for it again after it came back. Everything lies in a folder of its
own that is removed, and the process is ended by pid and start time, whatever happened.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ebbtide.diagnostics.probe.rehearsal import Act, RehearsalFailed
from ebbtide.helper.criu.criu_program import Criu
from ebbtide.snapshot.tiers import Lane, Rate
from ebbtide.snapshot.tiers.formatting import gigabytes, rate, seconds
from ebbtide.system.process import await_end, kill_exactly, started_ticks

CHILD_BYTES = 64 << 20  # with Python itself an image of some 75 MB: a fraction of a second each way
STEP_S = 60.0  # for each of CRIU's two runs; 4 GB took it 18 s
_ANSWER_S = 10.0
_CHILD = """
import hashlib, os, time
kept = os.urandom({size})
open('hash', 'w').write(hashlib.blake2b(kept).hexdigest())
open('ready', 'w').close()
end = time.time() + 300
while time.time() < end:
    if os.path.exists('ask') and not os.path.exists('answer'):
        open('answer.tmp', 'w').write(hashlib.blake2b(kept).hexdigest())
        os.rename('answer.tmp', 'answer')
    time.sleep(0.01)
"""


def image_and_back(criu: Criu, folder: Path, size_bytes: int = CHILD_BYTES) -> Act:
    """Rehearse in a new folder inside ``folder``.

    Raises:
        RehearsalFailed: CRIU refused, or the process did not come back.
    """
    try:
        place = Path(tempfile.mkdtemp(prefix=".ebbtide-rehearsal-", dir=folder))
    except OSError as error:
        raise RehearsalFailed(f"no image can be written into {folder}: {error.strerror}") from error
    (image := place / "image").mkdir()
    with (place / "output").open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD.format(size=size_bytes)],
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    living = child.pid, started_ticks(child.pid) or 0
    try:
        _await(place / "ready", "the child that is to be dumped did not start")
        out_s = _run(criu, "dump", child.pid, image)
        child.wait(STEP_S)  # until its pid is free, nothing can come back under it
        back_s = _run(criu, "restore", child.pid, image)
        living = child.pid, started_ticks(child.pid) or 0
        (place / "ask").touch()
        _await(place / "answer", "the process came back from its image and does not answer")
        same = (place / "answer").read_text() == (place / "hash").read_text()
        size = sum(one.stat().st_size for one in image.iterdir())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RehearsalFailed(f"the rehearsal with CRIU was not finished: {error}") from error
    finally:
        kill_exactly(*living)
        await_end(*living, patience_s=STEP_S)  # one that came back from its image is nobody's child here
        if child.poll() is None:
            child.wait(STEP_S)
        shutil.rmtree(place, ignore_errors=True)
    return _told(size, out_s, back_s, same=same)


def _told(size: int, out_s: float, back_s: float, *, same: bool) -> Act:
    if not same:
        return Act("criu", "a process came back from its image with OTHER bytes: do not use images here", failed=True)
    out, back = size / out_s, size / back_s
    words = (
        f"an image of {gigabytes(size)} was written in {seconds(out_s)} ({rate(out)}), and the process came back from "
        f"it in {seconds(back_s)}, bit for bit"
    )
    origin = f"rehearsed with an image of {gigabytes(size)}, {time.strftime('%Y-%m-%d')}"
    rates = {Lane.CRIU_OUT: Rate(out, origin, measured=True), Lane.CRIU_BACK: Rate(back, origin, measured=True)}
    return Act("criu", words, rates)


def _run(criu: Criu, action: str, pid: int, image: Path) -> float:
    """Seconds that it took."""
    command = [str(criu.path), action, "-D", str(image), "-o", f"{action}.log"]
    command += ["-t", str(pid)] if action == "dump" else ["-d"]
    began_s = time.perf_counter()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STEP_S, start_new_session=True
    )
    took_s = time.perf_counter() - began_s
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RehearsalFailed(f"CRIU's {action} failed: {last[:300]}")
    return took_s


def _await(path: Path, otherwise: str) -> None:
    deadline_s = time.monotonic() + _ANSWER_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise RehearsalFailed(otherwise)
        time.sleep(0.005)
