"""Asking the helper. Blocking, one connection for each question; for threads of its caller.

Errors are those of `ebbtide.helper.errors`, raised here as they were there. Whoever gets `OutcomeUnknown` reads back
with `Helper.state` (or looks at the image) before asking for anything else.
"""

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ebbtide.helper.errors import Malformed, OutcomeUnknown, Unreachable
from ebbtide.helper.protocol.line_socket import Ended, LineTooLong, TooSlow, read_line
from ebbtide.helper.protocol.requests import (
    Checkpoint,
    Discard,
    Dump,
    Facts,
    Forget,
    Hindrances,
    Lock,
    Register,
    Reply,
    Request,
    Restore,
    Revive,
    State,
    Unlock,
)

_REPLY_LIMIT_BYTES = 4 << 20
_SLACK_S = 10.0  # beyond the helper's own deadline
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Workload:
    """One registered workload, as the helper knows it.

    Attributes:
        standing: ``live``, ``dumping``, ``dumped`` or ``reviving``.
        alive: its root process is there, and is the same one.
        image_dir: where its image is, if it is dumped or on the way; else "".
        driver: where the GPU driver says that all its processes are which use a GPU: ``running``, ``locked``,
            ``checkpointed``, ``failed``; ``unused``: none does; ``mixed: ...``: not all the same; ``unknown...``. ""
            where there is no driver, or no process.
        busy: the verb that is under way on it; "": none.
    """

    name: str
    pid: int
    started: int
    generation: int
    standing: str
    alive: bool
    image_dir: str = ""
    driver: str = ""
    busy: str = ""


@dataclass(frozen=True, slots=True)
class InTheWay:
    """What would be in the way of taking a workload aside, as far as it can be seen from outside.

    Attributes:
        gpu: as `Workload.driver`; "": the driver has nothing to take off here.
        unclear: why the driver cannot take it off its GPU; "": nothing is known of.
        image: what is in the way of an image of it, each with what would work; empty: nothing.
    """

    gpu: str
    unclear: str
    image: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """A committed image."""

    name: str
    image_dir: Path
    image_bytes: int


class Helper:
    """The helper at a socket. Every method raises `HelperError`."""

    def __init__(self, path: Path) -> None:
        """Nothing is asked yet."""
        self._path = path

    def register(self, name: str, pid: int, started: int) -> Workload:
        """Make a process known: root of its tree, start time in clock ticks since boot. Again is no error."""
        return Workload(**self._ask(Register, verb="register", name=name, pid=pid, started=started))

    def forget(self, name: str) -> None:
        """Strike a workload; its processes and image stay as they are."""
        self._ask(Forget, verb="forget", name=name)

    def state(self, *names: str) -> list[Workload]:
        """Where these stand; answers also while something is under way on them."""
        return _workloads(self._ask(State, verb="state", names=list(names)))

    def lock(self, names: Sequence[str], timeout_ms: int = 10_000) -> list[Workload]:
        """Let the work on GPUs of all of these end, all or none."""
        return _workloads(self._ask(Lock, verb="lock", names=list(names), timeout_ms=timeout_ms))

    def checkpoint(self, names: Sequence[str]) -> list[Workload]:
        """Take all of these, which are locked, off their GPUs."""
        return _workloads(self._ask(Checkpoint, verb="checkpoint", names=list(names)))

    def restore(self, names: Sequence[str], gpu_map: Mapping[str, str] | None = None) -> list[Workload]:
        """Put all of these back on GPUs; ``gpu_map`` from uuid then to uuid now, None: the same."""
        return _workloads(self._ask(Restore, verb="restore", names=list(names), gpu_map=dict(gpu_map or {})))

    def unlock(self, names: Sequence[str]) -> list[Workload]:
        """Let all of these work on."""
        return _workloads(self._ask(Unlock, verb="unlock", names=list(names)))

    def dump(self, name: str, image_dir: Path) -> Image:
        """Put the whole tree into an image; when this returns, that is committed and no process of it is left."""
        found = self._ask(Dump, verb="dump", name=name, image_dir=str(image_dir))
        return Image(found["name"], Path(found["image_dir"]), found["image_bytes"])

    def hindrances(self, name: str) -> InTheWay:
        """What would be in the way of taking it aside; nothing is touched."""
        found = self._ask(Hindrances, verb="hindrances", name=name)
        return InTheWay(found["gpu"], found["unclear"], tuple(found["image"]))

    def revive(self, image_dir: Path) -> Workload:
        """Make processes of an image, with the pids they had; the image stays."""
        return Workload(**self._ask(Revive, verb="revive", image_dir=str(image_dir)))

    def discard(self, image_dir: Path) -> None:
        """Remove an image; if it was all there was of its workload, that is forgotten."""
        self._ask(Discard, verb="discard", image_dir=str(image_dir))

    def facts(self) -> dict[str, Any]:
        """What this helper can do: ``criu`` or ``why_not_criu``, ``driver`` with its capabilities. Whom it knows, as
        ``workloads``; what is under way, by workload and image, as ``busy``."""
        return self._ask(Facts, verb="facts")

    def _ask(self, kind: type[Request], **fields: Any) -> dict[str, Any]:
        try:
            request = kind(**fields)
        except ValidationError as error:
            raise Malformed(f"cannot ask for that: {error}", "see ebbtide.helper.protocol.requests") from None
        line, verb = request.model_dump_json().encode() + b"\n", request.verb
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_S)
            try:
                connection.connect(str(self._path))
            except OSError as error:
                raise Unreachable(
                    f"no helper answers at {self._path}: {error}", "start it: python -m ebbtide.helper --socket PATH"
                ) from error
            with suppress(OSError):  # it may have answered without listening, as it does to strangers
                connection.sendall(line)
            try:
                raw = read_line(connection, _REPLY_LIMIT_BYTES, request.deadline_s + _SLACK_S)
                return Reply.model_validate_json(raw).take()
            except (OSError, Ended, TooSlow, LineTooLong, ValidationError) as error:
                raise OutcomeUnknown(
                    f"the helper at {self._path} was asked to {verb} and did not answer: {error}",
                    "wait until it runs again, then read back with state",
                ) from error


def _workloads(found: dict[str, Any]) -> list[Workload]:
    return [Workload(**one) for one in found["workloads"]]
