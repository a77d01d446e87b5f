"""A workload's processes become an image, and then end; or all is as before.

The tree stays, stopped, until its image stands under its name, synced and committed: only then is it killed. So at any
moment the workload is whole in one of the two, and which one counts is told by the image alone.
"""

import os
import signal
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ebbtide.helper.criu.connections import holders_elsewhere, sockets_of
from ebbtide.helper.criu.criu_program import INET, Held, why_it_failed
from ebbtide.helper.criu.image import IMAGES, Manifest, Process, hashed_files, read_manifest, seal
from ebbtide.helper.criu.needs import needs_of
from ebbtide.helper.criu.objections import Ends, Objection, objections, pipes, socket_inodes, without_gpus
from ebbtide.helper.criu.proc_tree import Tree, descendants, look_at
from ebbtide.helper.errors import HelperUnusable, Refused, Undone
from ebbtide.helper.journal.journal_state import Entry
from ebbtide.helper.journal.operation import Operation, Tool, Workplace
from ebbtide.helper.journal.workload_states import Op, Standing, Step
from ebbtide.helper.operations.image_paths import check_room, check_way
from ebbtide.storage.errors import StorageError
from ebbtide.system.process import await_end, boot_id, is_alive, kill_exactly

OTHER_TIER = "park it in memory, or start it from a portable checkpoint"
_END_PATIENCE_S = 30.0  # a killed process frees its memory at some 10 GB/s; one that waits for a disk takes longer


class DumpUndone(Exception):
    """Something failed before the image stood; the message says what."""


def check_dump(tool: Tool, entry: Entry, image_dir: Path) -> Tree:
    """Everything that would be in the way, looked at without touching anything.

    Raises:
        Refused: something is.
    """
    _must_be_live(entry)
    check_way(image_dir)
    if os.path.lexists(image_dir):
        raise Refused(f"something is at {image_dir} already", "discard it, or name another folder")
    tree, found = _look(tool, entry)
    if found:
        raise Refused(f"{entry.name} cannot be dumped: " + "; ".join(map(str, found)), OTHER_TIER)
    check_room(image_dir, tree.own_bytes)
    return tree


def hindrances(tool: Tool, entry: Entry, *, off_gpu: bool) -> list[str]:
    """What is in the way of an image of a workload, without regard to where that would be; nothing is touched.

    Args:
        off_gpu: the driver would take it off its GPUs first: what it has open of them is not in the way.

    Raises:
        Refused: it has no processes, or they cannot be looked into.
    """
    _must_be_live(entry)
    return [str(one) for one in _look(tool, entry, off_gpu=off_gpu)[1]]


def _must_be_live(entry: Entry) -> None:
    if entry.standing is not Standing.LIVE:
        raise Refused(f"{entry.name} is {entry.standing.value} at {entry.image_dir}", "revive it, or discard its image")


def _look(tool: Tool, entry: Entry, *, off_gpu: bool = False) -> tuple[Tree, tuple[Objection, ...]]:
    try:
        if entry.boot != boot_id() or not is_alive(entry.pid, entry.started):
            raise ProcessLookupError(entry.pid)
        tree = look_at(entry.pid)
        found = _objections(without_gpus(tree) if off_gpu else tree, tool)
    except (ProcessLookupError, FileNotFoundError):
        raise Refused(
            f"process {entry.pid} of {entry.name} has ended", "forget it, and register what runs now"
        ) from None
    except PermissionError as error:
        raise Refused(
            f"process {entry.pid} cannot be looked into: {error}", "run the helper with CAP_SYS_PTRACE"
        ) from None
    if tree.root.started != entry.started:
        raise Refused(f"process {entry.pid} of {entry.name} has ended", "forget it, and register what runs now")
    return tree, found


def dump(place: Workplace, tool: Tool, entry: Entry, image_dir: Path) -> Manifest:
    """Do it; takes as long as CRIU and the disk take.

    Raises:
        Refused: nothing was touched.
        Undone: it failed; the processes run on, and nothing is left at ``image_dir``.
        HelperUnusable: the helper must end (see `journal.Journal.write`).
    """
    check_dump(tool, entry, image_dir)
    work = image_dir.with_name(f".{image_dir.name}.{os.urandom(8).hex()}.tmp")
    operation = Operation.on(place, Op.DUMP, entry, image_dir=str(image_dir), work=str(work))
    try:
        manifest = _make(operation, tool, entry, image_dir, work)
    except (DumpUndone, StorageError, OSError) as error:
        if stands(operation, image_dir):
            # Renamed, and the sync of that failed. The tree must not run on beside an image that counts.
            raise HelperUnusable(f"image {image_dir} stands, and is perhaps not durable: {error}") from error
        lead_back(operation, work)
        operation.note(Step.UNDONE, why=str(error))
        raise Undone(f"dump of {entry.name} failed, and it runs on: {error}", OTHER_TIER) from error
    except BaseException:
        if not stands(operation, image_dir):
            lead_back(operation, work)
        raise
    finish(operation, manifest)
    return manifest


def finish(operation: Operation, manifest: Manifest) -> None:
    """From PLACED on: end the processes that the image holds."""
    end_processes(manifest)
    operation.note(Step.KILLED)
    operation.clear_run()
    operation.note(Step.DONE)


def stands(operation: Operation, image_dir: Path) -> Manifest | None:
    """The image that this very operation made, if it stands under its name, committed."""
    try:
        manifest = read_manifest(image_dir)
    except Refused:
        return None
    return manifest if manifest.operation == operation.id else None


def end_processes(manifest: Manifest) -> None:
    """Kill what is left of a dumped tree, its root last, so that whoever waits for that one finds all of it gone."""
    if manifest.boot != boot_id():
        return
    for one in reversed(manifest.processes):
        kill_exactly(one.pid, one.started)
    for one in manifest.processes:
        await_end(one.pid, one.started, patience_s=_END_PATIENCE_S)


def lead_back(operation: Operation, work: Path) -> None:
    """Let the processes run on, and remove what there is of an image, as far as the disk lets us. Harmless again."""
    line = operation.first
    if line.boot == boot_id() and is_alive(line.pid, line.started):
        for pid in (*reversed(descendants(line.pid)), line.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    with suppress(StorageError):  # the processes run: that is what counts; nobody ever takes it for an image
        operation.place.disk.remove_tree(work)
    operation.clear_run()


def _make(operation: Operation, tool: Tool, entry: Entry, image_dir: Path, work: Path) -> Manifest:
    """INTENT -> PLACED."""
    disk, run = operation.place.disk, operation.run
    for folder in (run, work, work / IMAGES):
        disk.make_directory(folder)
    held = Held(
        tool.criu, run,
        # --leave-stopped: the tree is ours to kill, later. --file-locks: sessions hold flocks of their own.
        ("dump", "-t", str(entry.pid), "-D", str(work / IMAGES), "-W", str(run), "-o", "dump.log", "-v4",
         "--leave-stopped", "--file-locks", *INET),
    )  # fmt: skip
    try:
        operation.note(Step.SPAWNED, runner_pid=held.runner.pid, runner_started=held.runner.started)
        held.go()
    except BaseException:
        held.give_up()
        raise
    held.reap()
    if held.runner.code() != 0:
        raise DumpUndone(why_it_failed(run))
    operation.note(Step.STOPPED)
    manifest = _describe(operation, tool, entry, work)
    seal(work, manifest, disk)
    operation.note(Step.SEALED)
    if not disk.move(work, image_dir):
        raise DumpUndone(f"something has appeared at {image_dir}")
    operation.note(Step.PLACED)
    return manifest


def _describe(operation: Operation, tool: Tool, entry: Entry, work: Path) -> Manifest:
    """The manifest, of the tree as it stands stopped."""
    try:
        tree = look_at(entry.pid)
        files = hashed_files(work / IMAGES)
        needs = needs_of(tree)
    except OSError as error:
        raise DumpUndone(f"the stopped tree or its image cannot be read: {error}") from error
    # What may have come between the first look and the stop; that it is stopped now is our own doing.
    if late := [str(objection) for objection in _objections(tree, tool, stopped=True)]:
        raise DumpUndone("; ".join(late))
    return Manifest(
        operation=operation.id, name=entry.name, generation=entry.generation, uid=entry.uid,
        created=datetime.now(UTC).isoformat(timespec="seconds"), boot=boot_id(),
        processes=tuple(Process(pid=member.pid, started=member.started, name=member.name) for member in tree.members),
        own_bytes=tree.own_bytes, image_bytes=sum(file.size_bytes for file in files),
        machine=tool.machine, needs=needs, files=files,
    )  # fmt: skip


def _objections(tree: Tree, tool: Tool, *, stopped: bool = False) -> tuple[Objection, ...]:
    inside = frozenset(member.pid for member in tree.members)
    ends = Ends(
        sockets_of(tree.root.pid, socket_inodes(tree)), holders_elsewhere(pipes(tree), inside), tool.criu.takes_inet
    )
    return objections(tree, ends, stopped=stopped)
