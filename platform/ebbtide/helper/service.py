"""What each verb does: its checks, its claim, then the work. Knows nothing of sockets.

A verb acts only on processes that are registered and still the same ones: pid and start time are looked at right
before. A peer may register only processes of its own user, unless it is root.
"""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ebbtide.helper.criu.criu_program import NoCriu
from ebbtide.helper.errors import Refused
from ebbtide.helper.journal.journal_state import Entry
from ebbtide.helper.journal.operation import Operation, Tool, Workplace
from ebbtide.helper.journal.operation_locks import OperationLocks
from ebbtide.helper.journal.workload_states import Op, Standing, Step
from ebbtide.helper.operations.crash_recovery import settle
from ebbtide.helper.operations.gpu_checkpoint import move_all, stand
from ebbtide.helper.operations.gpu_processes import GpuTree, look_at_gpus
from ebbtide.helper.operations.image_dump import OTHER_TIER, dump, hindrances
from ebbtide.helper.operations.image_removal import check_discard, discard
from ebbtide.helper.operations.image_revival import check_name, check_revive, revive
from ebbtide.helper.protocol.line_socket import Peer
from ebbtide.helper.protocol.requests import (
    Checkpoint,
    Discard,
    DriverRequest,
    Dump,
    Facts,
    Forget,
    Hindrances,
    Lock,
    Register,
    Request,
    Restore,
    Revive,
    State,
    Unlock,
)
from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.process_states import ProcessState
from ebbtide.storage.errors import StorageError
from ebbtide.system.process import boot_id, is_alive

_REGISTER = "register it, with pid and start time"


class Service:
    """The verbs. For many threads."""

    def __init__(self, place: Workplace, tool: Tool | NoCriu, driver: BoundedDriver) -> None:
        """Work at ``place``, with CRIU and a driver as far as there are any."""
        self._place, self._tool, self._driver = place, tool, driver
        self._claims = OperationLocks()
        self._unsettled: list[ExitStack] = []  # kept: a claim that nobody has is given back

    def settle_all(self, tell: Callable[[str], None]) -> list[threading.Thread]:
        """Begin to settle what was left under way; until that is done, those workloads are busy.

        Returns:
            The threads that do it.
        """
        threads = []
        for lines in self._place.journal.book.open_operations():
            keys = {lines[-1].name, str(lines[-1].facts.get("image_dir", lines[-1].name))}
            held = ExitStack()
            # guard: what is being settled is claimed
            held.enter_context(self._claims.claim(keys, f"settling {lines[-1].op.value}"))

            def work(lines: Any = lines, held: ExitStack = held) -> None:
                try:
                    tell(settle(self._place, lines, self._stands))
                except (StorageError, OSError) as error:
                    # guard: what could not be settled stays claimed
                    self._unsettled.append(held)  # still claimed: nobody may begin anything on what is not settled
                    tell(f"{lines[-1].name}: not settled, and busy until the helper is started again: {error}")
                    return
                held.close()

            threads.append(threading.Thread(target=work, name=f"settle-{lines[-1].name}", daemon=True))
        for thread in threads:
            thread.start()
        return threads

    def answer(self, peer: Peer, request: Request) -> dict[str, Any]:
        """Do what is asked.

        Raises:
            HelperError: it was not done, or not wholly; see there.
        """
        match request:
            case Register():
                return self._register(peer, request)
            case Forget():
                return self._forget(peer, request)
            case State():
                return {"workloads": self._state(peer, request.names)}
            case Lock() | Checkpoint() | Restore() | Unlock():
                return self._move(peer, request)
            case Dump():
                return self._dump(peer, request)
            case Hindrances():
                return self._hindrances(peer, request)
            case Revive():
                return self._revive(peer, request)
            case Discard():
                return self._discard(peer, request)
            case Facts():
                return self._facts()

    # ---- who is who

    def _register(self, peer: Peer, request: Register) -> dict[str, Any]:
        with self._claims.claim({request.name}, request.verb):
            known = self._place.journal.book.entries.get(request.name)
            # guard: a dumped workload is not registered again
            if known is not None and known.standing is not Standing.LIVE:
                raise Refused(
                    f"{request.name} is {known.standing.value} at {known.image_dir}", "revive it, or discard its image"
                )
            uid = _uid_of(request.pid)
            # guard: a process that is not there is not registered
            if uid is None or not is_alive(request.pid, request.started):
                raise Refused(f"there is no process {request.pid} that began at {request.started}", "look again")
            if peer.uid not in (0, uid):  # guard: a process of another user is not registered
                raise Refused(f"process {request.pid} belongs to user {uid}, not {peer.uid}", "ask as that user")
            same = known is not None and (known.pid, known.started) == (request.pid, request.started)
            if known is not None and not same and _lives(known):  # guard: a name of a living process is taken
                raise Refused(f"{request.name} is process {known.pid}, which lives", "forget it, or take another name")
            if known is None or not same:  # guard: registering again changes nothing
                generation = known.generation + 1 if known else 1  # guard: a new process is a new generation
                entry = Entry(
                    request.name, request.pid, request.started, boot_id(), generation, uid, Standing.LIVE
                )  # fmt: skip
                Operation.on(self._place, Op.REGISTER, entry, Step.DONE)
            return _shown(self._place.journal.book.entries[request.name])

    def _forget(self, peer: Peer, request: Forget) -> dict[str, Any]:
        with self._claims.claim({request.name}, request.verb):
            entry = self._known(peer, request.name)
            Operation.on(self._place, Op.FORGET, entry, Step.DONE)
            return {}

    def _state(self, peer: Peer, names: list[str]) -> list[dict[str, Any]]:
        entries = [self._known(peer, name) for name in names]
        busy = {entry.name: self._claims.who(entry.name) for entry in entries}  # first: what is read after it, stands
        stands = stand(self._driver, entries) if not self._no_driver() else {}
        return [{**_shown(entry), "driver": stands.get(entry.name, ""), "busy": busy[entry.name]} for entry in entries]

    def _stands(self, name: str) -> str:
        """Where the driver has one workload; "": there is no driver, or no process of it."""
        entry = self._place.journal.book.entries.get(name)
        return "" if entry is None or self._no_driver() else stand(self._driver, (entry,))[name]

    def _known(self, peer: Peer, name: str) -> Entry:
        entry = self._place.journal.book.entries.get(name)
        if entry is None:  # guard: a workload that was never registered is refused
            raise Refused(f"nobody has registered {name}", _REGISTER)
        if peer.uid not in (0, entry.uid):
            raise Refused(f"{name} belongs to user {entry.uid}, not {peer.uid}", "ask as that user")
        return entry

    # ---- the driver's verbs

    def _move(self, peer: Peer, request: DriverRequest) -> dict[str, Any]:
        with self._claims.claim(request.names, request.verb):
            entries = [self._known(peer, name) for name in dict.fromkeys(request.names)]
            for entry in entries:
                if entry.standing is not Standing.LIVE or not _lives(entry):
                    raise Refused(f"process {entry.pid} of {entry.name} is not there", _REGISTER)
            if why := self._no_driver():
                raise Refused(f"no process can be taken off its GPU here: {why}", "evict, or stop and restart instead")
            move_all(self._place, self._driver, request, entries)
        return {"workloads": self._state(peer, request.names)}

    def _no_driver(self) -> str:
        return self._driver.driver.capabilities().why_not_checkpoint

    # ---- images

    def _dump(self, peer: Peer, request: Dump) -> dict[str, Any]:
        tool = self._criu()
        with self._claims.claim({request.name, request.image_dir}, request.verb):
            entry = self._known(peer, request.name)
            gpu = self._gpu_of(entry)
            if on := [user for user in gpu.users if user.state is not ProcessState.CHECKPOINTED]:
                raise Refused(
                    f"{entry.name} cannot be dumped: process {on[0].pid} is on a GPU ({gpu.word})",
                    f"take it off first: lock and checkpoint, by the driver; or {OTHER_TIER}",
                )
            # What no process of it uses is nothing that the image depends on.
            tool = tool if gpu.users else replace(tool, machine=tool.machine.model_copy(update={"gpu": None}))
            manifest = dump(self._place, tool, entry, Path(request.image_dir))
            return {"name": entry.name, "image_dir": request.image_dir, "image_bytes": manifest.image_bytes}

    def _gpu_of(self, entry: Entry) -> GpuTree:
        return GpuTree(entry.name, entry.pid) if self._no_driver() else look_at_gpus(self._driver, (entry,))[0]

    def _hindrances(self, peer: Peer, request: Hindrances) -> dict[str, Any]:
        entry = self._known(peer, request.name)
        gpu = self._gpu_of(entry)
        criu, uses = self._tool, bool(gpu.users)
        why = [criu.why] if isinstance(criu, NoCriu) else hindrances(criu, entry, off_gpu=uses)
        return {"gpu": gpu.word if gpu.users else "", "unclear": gpu.unclear, "image": why}

    def _revive(self, peer: Peer, request: Revive) -> dict[str, Any]:
        tool, image_dir = self._criu(), Path(request.image_dir)
        with ExitStack() as held:
            held.enter_context(self._claims.claim({request.image_dir}, request.verb))
            manifest = check_revive(image_dir, tool)
            if peer.uid not in (0, manifest.uid):  # guard: an image of another user is not revived
                raise Refused(f"image {image_dir} is of user {manifest.uid}, not {peer.uid}", "ask as that user")
            # guard: a workload is revived once at a time
            held.enter_context(self._claims.claim({manifest.name}, request.verb))
            known = self._place.journal.book.entries.get(manifest.name)
            check_name(known, manifest)
            return _shown(revive(self._place, tool, image_dir, manifest, known))

    def _discard(self, peer: Peer, request: Discard) -> dict[str, Any]:
        image_dir = Path(request.image_dir)
        with ExitStack() as held:
            held.enter_context(self._claims.claim({request.image_dir}, request.verb))
            manifest = check_discard(image_dir)
            if peer.uid not in (0, manifest.uid):  # guard: an image of another user is not discarded
                raise Refused(f"image {image_dir} is of user {manifest.uid}, not {peer.uid}", "ask as that user")
            held.enter_context(self._claims.claim({manifest.name}, request.verb))
            discard(self._place, image_dir, manifest, self._place.journal.book.entries.get(manifest.name))
            return {}

    def _criu(self) -> Tool:
        if isinstance(self._tool, NoCriu):
            raise Refused(f"there can be no images here: {self._tool.why}", "park in memory, or a portable checkpoint")
        return self._tool

    def _facts(self) -> dict[str, Any]:
        criu = self._tool
        return {
            "version": 1,
            "pid": os.getpid(),
            "uid": os.geteuid(),
            "criu": "" if isinstance(criu, NoCriu) else criu.criu.version,
            "why_not_criu": criu.why if isinstance(criu, NoCriu) else "",
            "driver": asdict(self._driver.driver.capabilities()),
            "workloads": sorted(self._place.journal.book.entries),
            "busy": self._claims.all(),
        }


def _shown(entry: Entry) -> dict[str, Any]:
    shown: Mapping[str, Any] = {
        "name": entry.name,
        "pid": entry.pid,
        "started": entry.started,
        "generation": entry.generation,
        "standing": entry.standing.value,
        "alive": _lives(entry),
        "image_dir": entry.image_dir,
    }
    return dict(shown)


def _lives(entry: Entry) -> bool:
    return entry.boot == boot_id() and is_alive(entry.pid, entry.started)


def _uid_of(pid: int) -> int | None:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1])
    except OSError:
        pass
    return None
