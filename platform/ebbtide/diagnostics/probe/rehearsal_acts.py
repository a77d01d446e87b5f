"""The whole rehearsal, act by act; what it measured is kept for the cost model."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.probe.memory_facts import memory_facts
from ebbtide.diagnostics.probe.rehearsal import (
    STORAGE_BYTES,
    Act,
    RehearsalFailed,
    evict_and_back,
    size_to_move,
    spill_and_back,
)
from ebbtide.diagnostics.probe.rehearsal_criu import image_and_back
from ebbtide.helper.criu.criu_program import Criu, find
from ebbtide.snapshot.rates_file import write_rates


def tracked_bytes(asked: int | None, machine: Machine) -> int:
    """With how many bytes to rehearse; see `size_to_move`."""
    return size_to_move(asked, memory_facts(machine)[0])


def rehearse(size_bytes: int, shared_dir: str, runtime_dir: Path, machine: Machine) -> tuple[Act, ...]:
    """All acts; one that cannot be done is told, and the others go on.

    Raises:
        OSError: the rates cannot be written.
    """
    acts = tuple(_acts(size_bytes, shared_dir, machine))
    rates = {lane: rate for act in acts for lane, rate in act.rates.items()}
    if rates:
        write_rates(runtime_dir, rates)
    return acts


def _acts(size_bytes: int, shared_dir: str, machine: Machine) -> Iterator[Act]:
    yield _tried("evict", lambda: evict_and_back(size_bytes))
    directory = Path(shared_dir)
    is_there = bool(shared_dir) and directory.is_dir()
    if is_there:
        yield _tried("spill", lambda: spill_and_back(directory, min(STORAGE_BYTES, size_bytes)))
    else:
        yield Act("spill", f"not rehearsed: there is no shared directory {shared_dir}".rstrip())
    criu = find(machine.environ, Path.cwd())
    if isinstance(criu, Criu):
        folder = directory if is_there else Path(tempfile.gettempdir())
        yield _tried("criu", lambda: image_and_back(criu, folder))
    else:
        yield Act("criu", f"not rehearsed: {criu.why}")


def _tried(name: str, act: Callable[[], Act]) -> Act:
    try:
        return act()
    except RehearsalFailed as error:
        return Act(name, str(error), failed=True)
