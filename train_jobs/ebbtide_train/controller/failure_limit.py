"""When to give a failing job up: after so many failures in a row without a step that no gang had reached before.

Counting only failures "in a row" would never end for a job that crashes at the same step each time, since every gang
repeats the steps from the last commit up to it.
"""


class FailureLimit:
    """The count. Pure."""

    def __init__(self, max_failures: int, *, finished: int = 0) -> None:
        """``finished``: steps that gangs before this run have reached."""
        self._max = max_failures
        self._furthest = finished
        self._in_a_row = 0

    def failed(self, finished: int) -> bool:
        """A gang failed after ``finished`` steps of the job; whether the job is to be given up."""
        if finished > self._furthest:
            self._furthest, self._in_a_row = finished, 0
        self._in_a_row += 1
        return self._in_a_row > self._max
