"""How far a transfer is: a bar on a terminal, a line now and then elsewhere. On stderr, so that results stay clean."""

import sys
import threading
import time
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

LINE_EVERY_S = 5.0  # where there is no terminal: a log of an hour has some hundred lines


class TransferBar:
    """A context manager; may be told from any thread."""

    def __init__(self, *, quiet: bool = False) -> None:
        """``quiet``: no lines; a bar is shown all the same, since only people see one."""
        self._is_terminal = sys.stderr.isatty()
        self._quiet = quiet
        self._lock = threading.Lock()
        self._what, self._done, self._began_s, self._began_at = "", 0, 0.0, 0
        self._told_s = float("-inf")
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=Console(file=sys.stderr), transient=True, disable=not self._is_terminal)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, what: str, done_bytes: int = 0, total_bytes: int = 0, *, why: str = "") -> None:
        """Say how far it is.

        Args:
            what: is being done.
            done_bytes: of it.
            total_bytes: of all of it; 0 if nobody knows.
            why: more words, such as who one waits for.
        """
        with self._lock:
            if what != self._what:
                self._what, self._began_s, self._began_at = what, time.monotonic(), done_bytes
                self._told_s = float("-inf")
                self._bar.reset(self._task)
            text = f"{what}: {why}" if why else what
            self._bar.update(self._task, description=escape(text), completed=done_bytes, total=total_bytes or None)
            if self._is_terminal or self._quiet or time.monotonic() - self._told_s < LINE_EVERY_S:
                return
            self._told_s = time.monotonic()
            click.echo(f"{text}{_numbers(done_bytes, total_bytes, self._rate(done_bytes))}", err=True)

    def _rate(self, done_bytes: int) -> float:
        took_s = time.monotonic() - self._began_s
        return (done_bytes - self._began_at) / took_s if took_s > 0.5 else 0.0


def _numbers(done_bytes: int, total_bytes: int, rate: float) -> str:
    if not total_bytes:
        return ""
    text = f": {decimal(done_bytes)} of {decimal(total_bytes)} ({100 * done_bytes // total_bytes} %)"
    if rate <= 0:
        return text
    left_s = max(0, total_bytes - done_bytes) / rate
    return f"{text}, {decimal(int(rate))}/s, {_time(left_s)} left"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
