"""A child that is told words on its stdin and answers with events; see `benchmarks.preempt.events`."""

import json
import subprocess
import sys
from types import TracebackType

from benchmarks.preempt.events import Event, Story

END_S = 120.0  # to give back tens of GB of page-locked memory


class ChildFailed(Exception):
    """It ended before it said what was waited for."""


class Child:
    """One process of `benchmarks.gpu.preempt_child`; ended when the body ends."""

    def __init__(self, role: str, size_bytes: int, device: str) -> None:
        self._role = role
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.preempt_child", role, str(size_bytes), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.story = Story()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def kill(self) -> None:
        """It is needed no more, and may be in no state to hear anything."""
        self._process.kill()

    def told(self, word: str, then: Event) -> Story:
        """Tell it, and wait until it says ``then``."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ChildFailed(f"{self._role} ended before it was told {word}") from error
        return self.until(then)

    def until(self, event: Event | None) -> Story:
        """Everything that it has said until ``event``, or until its end for None.

        Raises:
            ChildFailed: it ended without.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"event"'):
                self.story.add(json.loads(line))
                if event is not None and event in self.story.at_s:
                    return self.story
        if event is not None or self._process.wait(END_S):
            raise ChildFailed(f"{self._role} ended with {self._process.wait(END_S)} before it was {event}")
        return self.story
