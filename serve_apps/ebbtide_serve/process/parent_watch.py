"""Engine processes die with their replica's actor, from their first moment on.

vLLM's engine process outlives a SIGKILL of its parent and keeps the GPU (vllm#55510). A watch inside the child
ends it, and it must be armed before the child does anything slow: importing vLLM alone takes 5 to 15 seconds.
Three places arm it, each enough from its point on:

1. *At birth*: ``multiprocessing`` hands every spawned child a copy of the parent's process configuration and reads
   it before the child's target is imported. An entry there that starts the watch while it is unpickled runs ahead of
   vLLM's import. This leans on the private ``_config``; when it goes, 2 still holds, seconds later.
2. *In vLLM's plugin*, loaded by each of its processes (``vllm_plugin``).
3. *In our worker class*, before the slot lock is taken (``vllm.worker``): no watch, no allocation.

Not guaranteed: the first half second of a child, while Python itself starts.
"""

import multiprocessing
import os
from collections.abc import Mapping

from ebbtide.system.process import exit_with_parent
from ebbtide_serve.process.lease_env import actor_from_environment

_ARMED: list[tuple[int, int, int]] = []  # (pid of this process, actor, its start time): a fork starts unarmed
_CONFIG_KEY = "ebbtide_parent_watch"


class _WatchAtBirth:
    """Arms the watch in whatever process unpickles it; inherited by that process's own children too."""

    def __init__(self, pid: int, started: int) -> None:
        self._actor = (pid, started)

    def __reduce__(self) -> tuple[object, tuple[int, int]]:
        return (_arm_at_birth, self._actor)


def _arm_at_birth(pid: int, started: int) -> _WatchAtBirth:
    arm(pid, started)
    return _WatchAtBirth(pid, started)


def arm(pid: int, started: int) -> None:
    """End this process within a second of the death of process ``pid`` (start time ``started``). Safe to repeat."""
    if pid == os.getpid() or (os.getpid(), pid, started) in _ARMED:
        return
    exit_with_parent(pid, started)
    _ARMED.append((os.getpid(), pid, started))


def arm_from_environment(environ: Mapping[str, str]) -> bool:
    """:func:`arm` for the actor named in the environment; False if none is named."""
    actor = actor_from_environment(environ)
    if actor is None:
        return False
    arm(*actor)
    return True


def watch_children_from_birth(pid: int, started: int) -> None:
    """From now on every process that this one spawns by ``multiprocessing`` is born with the watch."""
    config: dict[str, object] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config[_CONFIG_KEY] = _WatchAtBirth(pid, started)
