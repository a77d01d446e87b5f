"""Checkpoints that an author writes beside ours, by ``torch.distributed.checkpoint.async_save``.

While one is under way its threads read tensors that a park takes away (until it is staged) and use a process group that
a park ends. So a park waits for it, and is refused by name if that takes too long.

They are told by what threads are at: torch's executor has a name of its own, and whatever else runs code of that
package in another thread (staging, the process that writes) has it on its stack. Nothing registers a save with us.

Not guaranteed: that a save is seen in the microseconds in which a thread of another executor takes it up.
"""

import sys
import threading
import time
from types import FrameType

WAIT_S = 10.0  # a third of a job's default grace: the rest is for the restart that comes instead
_POLL_S = 0.02
_EXECUTOR = "AsyncCheckpointExecutor"  # torch/distributed/checkpoint/_async_thread_executor.py (2.13)
_PACKAGE = "torch.distributed.checkpoint"


def under_way() -> list[str]:
    """The names of this process's other threads that save."""
    frames, me = sys._current_frames(), threading.get_ident()
    others = [thread for thread in threading.enumerate() if thread.ident is not None and thread.ident != me]
    return [other.name for other in others if other.name.startswith(_EXECUTOR) or _saves(frames.get(other.ident or 0))]


def wait_for_them(wait_s: float | None = None) -> str:
    """Wait until none is under way; why the gang cannot park, if that takes more than ``wait_s`` (`WAIT_S`)."""
    wait_s = WAIT_S if wait_s is None else wait_s
    deadline_s = time.monotonic() + wait_s
    while left := under_way():
        if time.monotonic() > deadline_s:
            return (
                f"a checkpoint of the author's own ({_PACKAGE}, in thread {', '.join(left)}) is still being written "
                f"after {wait_s:g} s; wait for its future before the step ends, or leave checkpoints to the session"
            )
        time.sleep(_POLL_S)
    return ""


def _saves(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False
