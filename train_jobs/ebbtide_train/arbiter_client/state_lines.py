"""A job's state as lines for a person: one when it changes, and why it waits."""

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ebbtide_train.arbiter_client.link import Link

LOOK_EVERY_S = 0.5  # the arbiter builds a status in milliseconds; faster than this nobody reads
_DURATION = re.compile(r"\b\d+(?:\.\d+)? (?:ms|s|min|h)\b")
AWAY_LOOKS = 3  # with the link's deadline of 2 s this is longer than an arbiter takes to restart


def job_view(status: Mapping[str, Any] | None, job: str) -> Mapping[str, Any] | None:
    """The job in the arbiter's status; None if it is not there."""
    for found in (status or {}).get("jobs", ()):
        if found["job"] == job:
            view: Mapping[str, Any] = found
            return view
    return None


def describe(view: Mapping[str, Any]) -> str:
    """One line; equal as long as nothing has changed that a person would call a change."""
    state, slots, why = view["state"], len(view["slots"]), view.get("waits") or ""
    if state == "waiting":
        return why if why.startswith("waits") else f"waits: {why or 'for the next decision'}"
    if state in ("starting", "running", "resuming"):
        loads = ": its train function has not begun its steps yet" if view.get("loading") else ""
        return f"{state} on {slots} slot{'' if slots == 1 else 's'}{loads}{_undurable(view)}"
    if state == "recovering":
        error = first_line(view.get("last_error") or "")
        crashed = f"{why}; it crashed: {error}" if why and error else why or error
        return f"recovering: {crashed or 'its gang is cleared away'}"
    if state == "ended":
        return f"ended: {first_line(view.get('outcome') or '') or 'without a word'}"
    if state == "parked":
        return (why if why.startswith("parked") else f"parked{f': {why}' if why else ''}") + _undurable(view)
    return f"{state}{f': {why}' if why else ''}"


def is_news(line: str, said: str) -> bool:
    """Whether a line says more than that time went by since another one was said."""
    return bool(_DURATION.sub("", line) != _DURATION.sub("", said))


def first_line(text: str) -> str:
    """Of an outcome: its cause; what follows is the end of a log."""
    return text.partition("\n")[0].strip()


def aside_lines(job: str, aside: Mapping[str, Any] | None) -> list[str]:
    """How a job will step aside when others need its slots, as the arbiter reckons; and what its author should know."""
    if aside is None:
        return []
    found = [f"job {job}: when others need its slots: {aside['words']}"]
    return [*found, f"job {job}: warning: {aside['warning']}"] if aside["warning"] else found


def _undurable(view: Mapping[str, Any]) -> str:
    """While its checkpoints fail: what a crash would cost."""
    error = view.get("commit_error")
    return (
        f"; its checkpoints fail, a crash now would take it back to step {view['durable_step']}: {error}"
        if error
        else ""
    )


class StateLines:
    """A thread that follows one job and says each new line once."""

    def __init__(self, link: Link, job: str, say: Callable[[str], None]) -> None:
        self._link, self._job, self._say = link, job, say
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="state-lines", daemon=True)
        self._said = ""
        self._away = 0

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Say no more; waits at most the link's deadline."""
        self._stopped.set()
        self._thread.join()

    def look(self) -> None:
        """Look once."""
        status = self._link.call("status")
        self._away = self._away + 1 if status is None else 0
        if self._away >= AWAY_LOOKS:
            self._line("the arbiter does not answer; the job goes on as it is")
        view = job_view(status, self._job)
        if view is not None:
            self._line(describe(view))

    def _line(self, text: str) -> None:
        if is_news(text, self._said):
            self._say(f"job {self._job}: {text}")
        self._said = text

    def _follow(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            self.look()
