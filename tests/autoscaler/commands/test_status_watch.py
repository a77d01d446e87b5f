"""``status --watch``: something at once, new widths, and an end without noise."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PLAYED = """
import sys, time
from rich.text import Text
from ebbtide.cli.terminal.output import print_json_line
from ebbtide_autoscaler.commands.status_watch import keep_on_screen

looks = 0
def look():
    global looks
    looks += 1
    time.sleep(float(sys.argv[1]) if looks == 1 else 0.0)
    return {"pool": "p", "looks": looks}

class Wide:
    def __rich_console__(self, console, options):
        yield Text(f"<{options.max_width} columns>")

print("begun", file=sys.stderr, flush=True)
keep_on_screen(look, print_json_line if "json" in sys.argv else None, lambda found: Wide(),
               first="pool p: asking the arbiter ...")
"""


def resize(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))


@contextmanager
def watching(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    ours, theirs = pty.openpty()
    resize(theirs, 80)
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-c", PLAYED, *arguments]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment | {"TERM": "xterm"})
    os.close(theirs)
    assert process.stderr is not None and process.stderr.readline() == b"begun\n"
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        os.close(ours)


def until(terminal: int, pattern: str, limit_s: float) -> str:
    """What was printed up to ``pattern``."""
    found, end_s = "", time.monotonic() + limit_s
    while not re.search(pattern, found):
        assert select.select([terminal], [], [], max(0.0, end_s - time.monotonic()))[0], f"only {found!r}"
        found += os.read(terminal, 65536).decode()
    return found


def test_something_is_shown_within_a_second_while_nobody_answers() -> None:
    with watching("30") as (process, terminal):
        until(terminal, "pool p .*asking the arbiter|asking the arbiter", 1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_a_terminal_that_changes_its_width_is_followed_and_ctrl_c_is_the_end() -> None:
    with watching("0") as (process, terminal):
        until(terminal, "<80 columns>", 10)
        resize(terminal, 60)
        until(terminal, "<60 columns>", 10)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr is not None and process.stderr.read() == b""


@pytest.mark.parametrize("form", ["tables", "json"])
def test_a_reader_that_leaves_ends_it_without_a_word(form: str) -> None:
    command = [sys.executable, "-c", PLAYED, "0", form]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.readline().decode()
    assert json.loads(first)["looks"] == 1 if form == "json" else first.startswith("<")
    process.stdout.close()
    assert process.wait(20) == 0
    assert process.stderr.read() == b"begun\n"
    process.stderr.close()


def test_a_stdout_that_the_shell_closed_ends_it_at_once(tmp_path: Path) -> None:
    shell = f"exec {sys.executable} -c '{PLAYED.replace(chr(39), chr(34))}' 30 >&-"
    done = subprocess.run(["bash", "-c", shell], stderr=subprocess.PIPE, timeout=20, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"begun\n")
