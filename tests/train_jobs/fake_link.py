"""A link whose answers the test lays down."""

import threading
from collections.abc import Callable
from typing import Any


class FakeLink:
    """Answers with what ``answers[method]`` returns; None for what is not there. Keeps all calls."""

    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.answers = dict(answers)
        self.calls: list[tuple[str, tuple[object, ...]]] = []
        self.called = threading.Condition()

    def call(self, method: str, *args: object, timeout_s: float = 2.0) -> Any:
        answer = self.answers[method](*args) if method in self.answers else None
        with self.called:
            self.calls.append((method, args))
            self.called.notify_all()
        return answer

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds after some call."""
        with self.called:
            assert self.called.wait_for(condition, timeout=10.0)
