"""``python -m benchmarks.preempt.child ROLE FOLDER BYTES``: one contender's process; tells its events on stdout."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.preempt import evictions, image, in_place, savers
from benchmarks.preempt.savers import SAVERS
from benchmarks.preempt.state import prepare_process

THREADS = 1  # as a session's workers have it on a CPU

ROLES: dict[str, Callable[[Path, int], None]] = {
    "undisturbed": savers.undisturbed,
    "evict": evictions.measure,
    "park": in_place.park,
    "stop": in_place.stop,
    "start again": in_place.start_again,
    "train": image.train,
    **{f"{name}: save": partial(savers.save_and_end, saver) for name, saver in SAVERS.items()},
    **{f"{name}: load": partial(savers.start_again, saver) for name, saver in SAVERS.items()},
}


def main() -> None:
    """See the module."""
    role, folder, size_bytes = sys.argv[1:]
    prepare_process(THREADS)
    ROLES[role](Path(folder), int(size_bytes))


if __name__ == "__main__":
    main()
