"""Real processes to be frozen by a fake driver; imported by the tests beside it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sleepers(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes that do nothing, until the block ends."""
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        yield started
    finally:
        for one in started:
            one.kill()
        for one in started:
            one.wait()
