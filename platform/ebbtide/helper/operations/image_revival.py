"""An image becomes processes again, with the pids they had; or nothing has happened, and the image is as it was."""

import time
from pathlib import Path

from ebbtide.helper.criu.criu_program import INET, Held, has_finished, why_it_failed
from ebbtide.helper.criu.image import ELSE, IMAGES, Manifest, Process, check_files, check_owner, read_manifest
from ebbtide.helper.criu.needs import lacks
from ebbtide.helper.errors import Refused, Undone
from ebbtide.helper.journal.journal_state import Entry
from ebbtide.helper.journal.operation import Operation, Tool, Workplace
from ebbtide.helper.journal.workload_states import Op, Standing, Step
from ebbtide.helper.operations.image_paths import check_memory, check_way
from ebbtide.storage.errors import StorageError
from ebbtide.system.process import boot_id, command_of, is_alive, kill_exactly, started_ticks

LOG = "restore.log"
_ZOMBIE_PATIENCE_S = 3.0  # process 1 of some containers looks for its children once a second
_CLEAR_PATIENCE_S = 10.0  # a killed process that has done nothing yet is gone in milliseconds


def check_revive(image_dir: Path, tool: Tool) -> Manifest:
    """Everything that would be in the way, looked at without touching anything; reads all of the image.

    Raises:
        Refused: something is.
    """
    check_way(image_dir)
    check_owner(image_dir)
    manifest = read_manifest(image_dir)
    if odd := manifest.machine.objections(tool.machine):
        raise Refused(
            f"image {image_dir} cannot be brought back here: " + "; ".join(odd),
            f"use {manifest.machine.wanted()}; or start from a portable checkpoint",
        )
    if taken := _taken(manifest):
        raise Refused(
            f"image {image_dir} needs pids that processes have now: {', '.join(map(str, taken[:5]))}",
            "end them (one that has ended must be waited for by its parent), or bring it back on another node",
        )
    if missing := list(lacks(manifest.needs)):
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise Refused(
            f"image {image_dir} cannot be brought back here: " + "; ".join(missing[:5]) + more,
            "put them back, use a node that has them, or start from a portable checkpoint",
        )
    check_memory(manifest.own_bytes, Path("/proc/meminfo").read_text())
    check_files(image_dir, manifest)
    return manifest


def _taken(manifest: Manifest) -> list[int]:
    """Pids of the image that some process has now. One that has ended is given time to be waited for."""
    end_s = time.monotonic() + _ZOMBIE_PATIENCE_S
    while True:
        taken = {
            process.pid: started
            for process in manifest.processes
            if (started := started_ticks(process.pid)) is not None
        }
        if any(is_alive(pid, started) for pid, started in taken.items()) or time.monotonic() >= end_s or not taken:
            return list(taken)
        time.sleep(0.01)


def check_name(entry: Entry | None, manifest: Manifest) -> None:
    """Refuse to bring back a workload that is there, or elsewhere.

    Raises:
        Refused: so it is.
    """
    if entry is None or entry.standing is Standing.DUMPED:
        return
    if entry.standing is Standing.LIVE and not (entry.boot == boot_id() and is_alive(entry.pid, entry.started)):
        return  # it was revived or registered, and has ended: back to its image is a crash's way back
    raise Refused(f"{manifest.name} is {entry.standing.value} as process {entry.pid}", "end it first, or leave it")


def revive(place: Workplace, tool: Tool, image_dir: Path, manifest: Manifest, known: Entry | None) -> Entry:
    """Do it, after the checks; takes as long as CRIU takes.

    Raises:
        Undone: it failed; no process of it is left, the image is as it was.
        HelperUnusable: the helper must end (see `journal.Journal.write`).
    """
    before = known or dumped_entry(manifest, image_dir)
    operation = Operation.on(place, Op.REVIVE, before, image_dir=str(image_dir), dumped_by=manifest.operation)
    try:
        place.disk.make_directory(operation.run)
        held = Held(
            tool.criu, operation.run,
            # -d: processes go on without CRIU. -W: the image's own folder stays as it is.
            ("restore", "-D", str(image_dir / IMAGES), "-W", str(operation.run), "-o", LOG, "-v4", "-d",
             "--file-locks", *INET),
        )  # fmt: skip
    except (StorageError, OSError) as error:
        operation.clear_run()
        operation.note(Step.UNDONE, why=str(error))
        raise Undone(f"image {image_dir} was not brought back: {error}", "make room on this node, ask again") from error
    try:
        operation.note(Step.SPAWNED, runner_pid=held.runner.pid, runner_started=held.runner.started)
        held.go()
    except BaseException:
        held.give_up()
        raise
    held.reap()
    return conclude(operation, manifest, held.runner.code(), held.runner.started)


def conclude(operation: Operation, manifest: Manifest, code: int | None, runner_started: int) -> Entry:
    """After CRIU's end: the processes count, or are cleared away.

    Raises:
        Undone: see `revive`.
    """
    if code != 0 and not has_finished(operation.run, LOG):
        why = why_it_failed(operation.run)
        if code is None:  # a CRIU that fails clears away by itself
            clear_away(manifest, runner_started)
        operation.clear_run()
        operation.note(Step.UNDONE, why=why)
        raise Undone(f"image {operation.first.facts['image_dir']} was not brought back: {why}", ELSE)
    root = manifest.processes[0].pid
    started = started_ticks(root) or 0  # 0: it has ended since
    generation = max(operation.first.generation, manifest.generation) + 1
    gpus = dict(manifest.machine.gpu.chips) if manifest.machine.gpu else {}
    operation.note(Step.RESTORED, revived_pid=root, revived_started=started, revived_generation=generation, gpus=gpus)
    operation.clear_run()
    operation.note_revived(root, started, generation, gpus)
    return operation.place.journal.book.entries[manifest.name]


def clear_away(manifest: Manifest, runner_started: int) -> None:
    """Kill what a CRIU that was itself killed has left half made.

    Only processes that began after it, under the pids of the image (which were free) and with CRIU's name or that of
    the process they were to become: whoever else got such a pid meanwhile is left alone.
    """
    deadline_s = time.monotonic() + _CLEAR_PATIENCE_S
    while left := [found for process in manifest.processes if (found := _half_made(process, runner_started))]:
        for pid, started in left:
            kill_exactly(pid, started)
        if time.monotonic() >= deadline_s:
            return
        time.sleep(0.01)


def _half_made(one: Process, runner_started: int) -> tuple[int, int] | None:
    started = started_ticks(one.pid)
    if started is None or started < runner_started or not is_alive(one.pid, started):
        return None
    return (one.pid, started) if command_of(one.pid) in ("criu", one.name) else None


def dumped_entry(manifest: Manifest, image_dir: Path) -> Entry:
    """What an image tells of a workload that this helper has never seen."""
    root = manifest.processes[0]
    return Entry(
        manifest.name, root.pid, root.started, manifest.boot, manifest.generation, manifest.uid, Standing.DUMPED,
        str(image_dir),
    )  # fmt: skip
