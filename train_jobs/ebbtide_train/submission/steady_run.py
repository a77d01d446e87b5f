"""Whether a job that was seen to start has got under way, or may still fail on its first steps.

A job runs as soon as its ranks do, and may fail a moment later; one that crashed runs again, up to where it crashed.
"""

STEADY_S = 5.0  # of running: a first step, its logging and its first batch of data are over by then
PATIENCE_S = 60.0  # a step that takes longer is not waited for


class SteadyRun:
    """One job, looked at again and again."""

    def __init__(self) -> None:
        self._furthest = 0  # finished steps that any look saw
        self._to_pass = 0  # finished steps when it last did not run: a crash may have taken it back since
        self._since_s: float | None = None  # when it was first seen running; None: it does not

    def look(self, state: str, step: int, now_s: float) -> bool:
        """Whether it has run for a while, and further than before it last stood still."""
        self._furthest = max(self._furthest, step)
        if state != "running":
            self._to_pass, self._since_s = self._furthest, None
            return False
        self._since_s = now_s if self._since_s is None else self._since_s
        ran_s = now_s - self._since_s
        return ran_s >= PATIENCE_S or (ran_s >= STEADY_S and step > self._to_pass)
