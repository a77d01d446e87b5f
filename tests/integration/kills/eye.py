"""Asking the arbiter from a process of its own, since Ray aborts a driver whose cluster is lost.

The child (``python -m tests.integration.kills.eye``) joins the pool and answers one JSON line per question. When it
dies, or hangs for longer than a question may take, the next question starts another. All questions come from one
thread at a time.
"""

import faulthandler
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[3]
JOIN_S = 30.0  # importing Ray and joining: 3 s, on a loaded machine 10 s


class Unanswered(RuntimeError):
    """Nobody answered in time."""


class Refused(ValueError):
    """The arbiter refused; its message says why."""


class Eye:
    """The parent's side."""

    def __init__(self, env: Mapping[str, str], log: Path) -> None:
        self._env, self._log = dict(env), log
        self._child: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def ask(self, method: str, *args: object, timeout_s: float = 5.0) -> Any:
        """What the arbiter's method gives; None when no arbiter answered.

        Raises:
            Refused: the arbiter refused.
            Unanswered: not even the asking process answers: the cluster is lost.
        """
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self._open()
            assert self._child is not None and self._child.stdin is not None
            try:
                self._child.stdin.write(json.dumps([method, list(args), timeout_s]) + "\n")
                self._child.stdin.flush()
                answer = json.loads(self._answers.get(timeout=timeout_s + 5.0))
            except (OSError, ValueError, queue.Empty) as error:
                self._close()
                raise Unanswered(f"no answer to {method}: {error!r}") from error
        if "refused" in answer:
            raise Refused(answer["refused"])
        return answer["is"]

    def _open(self) -> None:
        log = self._log.open("a")
        self._answers = queue.SimpleQueue()
        with log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.kills.eye"],
                cwd=ROOT,
                env={**os.environ, **self._env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._child.stdout is not None
        threading.Thread(target=_read, args=(self._child.stdout, self._answers), daemon=True).start()
        try:
            hello = self._answers.get(timeout=JOIN_S)
        except queue.Empty:
            hello = ""
        if not hello:
            self._close()
            raise Unanswered(f"cannot join the cluster; see {self._log}")

    def _close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait(10)
            for stream in (self._child.stdin, self._child.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            self._child = None

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._close()


def _read(stream: TextIO, into: "queue.SimpleQueue[str]") -> None:
    with suppress(ValueError):  # closed
        for line in stream:
            into.put(line)
    into.put("")


def main() -> None:
    """The child's side."""
    from ebbtide.client.arbiter_link import ArbiterLink
    from ebbtide.client.cluster_join import join
    from ebbtide.client.cluster_record import load_cluster

    words = os.fdopen(os.dup(1), "w")  # Ray and libraries print to 1: that goes to the log
    os.dup2(2, 1)
    faulthandler.enable()
    join(load_cluster())
    link = ArbiterLink()
    words.write('"joined"\n')
    words.flush()
    for line in sys.stdin:
        method, args, timeout_s = json.loads(line)
        faulthandler.dump_traceback_later(timeout_s + 4.0)
        deadline_s = time.monotonic() + timeout_s
        answer: dict[str, Any] = {"is": None}
        try:
            answer["is"] = link.call(method, *args, timeout_s=max(0.1, deadline_s - time.monotonic()))
        except ValueError as error:
            answer = {"refused": str(error)}
        faulthandler.cancel_dump_traceback_later()
        words.write(json.dumps(answer) + "\n")
        words.flush()


if __name__ == "__main__":
    main()
