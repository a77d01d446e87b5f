"""What can be asked of the helper: one model for each verb, and nothing else is understood.

One request for a connection, one line of JSON; one line comes back: ``{"ok": true, "result": {...}}`` or
``{"ok": false, "error": {"kind", "what", "remedy"}}``.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ebbtide.helper.errors import ON_THE_WIRE, HelperError, Malformed

LINE_LIMIT_BYTES = 256 << 10  # 1024 names of 128 characters, twice
_QUICK_S = 15.0  # beyond what the driver is given to answer
# CRIU wrote 4 GiB in 18 s where the disk throttled it: 60 GiB in this time. Nothing is stopped when it is over.
IMAGE_S = 300.0
_DRIVER_S = 400.0  # what `snapshot.driver.gang.Pace` may take at most for one verb, there and back

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$", description="of a workload or a rank")]
Names = Annotated[list[Name], Field(min_length=1, max_length=1024)]
Folder = Annotated[str, Field(pattern=r"^/[^\x00-\x1f]+$", max_length=4096, description="an absolute path")]
Pid = Annotated[int, Field(gt=1, lt=1 << 31)]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    deadline_s: ClassVar[float] = _QUICK_S


class Register(_Request):
    """Make a process tree known by its root; again with the same process is no error."""

    verb: Literal["register"]
    name: Name
    pid: Pid
    started: Annotated[int, Field(gt=0, description="clock ticks since boot, of /proc/PID/stat")]


class Forget(_Request):
    """Strike a workload; its processes and images stay."""

    verb: Literal["forget"]
    name: Name


class State(_Request):
    """Where workloads stand."""

    verb: Literal["state"]
    names: Names


class Lock(_Request):
    """Let all work of these workloads on their GPUs end, and keep them off: every process of them that uses one."""

    deadline_s = _DRIVER_S
    verb: Literal["lock"]
    names: Names
    timeout_ms: Annotated[int, Field(gt=0, le=600_000)] = 10_000


class Checkpoint(_Request):
    """All of these, which must be locked: off their GPUs."""

    deadline_s = _DRIVER_S
    verb: Literal["checkpoint"]
    names: Names


class Restore(_Request):
    """All of these: back on GPUs, by ``gpu_map`` (uuid at the checkpoint to uuid now; empty: the same)."""

    deadline_s = _DRIVER_S
    verb: Literal["restore"]
    names: Names
    gpu_map: Annotated[dict[str, str], Field(max_length=64)] = {}


class Unlock(_Request):
    """Let all of these work on."""

    deadline_s = _DRIVER_S
    verb: Literal["unlock"]
    names: Names


class Dump(_Request):
    """Put the whole process tree into an image and end it."""

    deadline_s = IMAGE_S
    verb: Literal["dump"]
    name: Name
    image_dir: Folder


class Hindrances(_Request):
    """What would be in the way of taking a workload aside; nothing is touched."""

    verb: Literal["hindrances"]
    name: Name


class Revive(_Request):
    """Make processes of an image."""

    deadline_s = IMAGE_S
    verb: Literal["revive"]
    image_dir: Folder


class Discard(_Request):
    """Remove an image."""

    deadline_s = IMAGE_S
    verb: Literal["discard"]
    image_dir: Folder


class Facts(_Request):
    """What this helper can do here."""

    verb: Literal["facts"]


DriverRequest = Lock | Checkpoint | Restore | Unlock
Request = Register | Forget | State | DriverRequest | Dump | Hindrances | Revive | Discard | Facts
_ADAPTER: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="verb")])


class _Error(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: str
    what: str
    remedy: str


class Reply(BaseModel):
    """One of the two is there."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    ok: bool
    result: dict[str, Any] = {}
    error: _Error | None = None

    @classmethod
    def refusing(cls, error: HelperError) -> "Reply":
        """The answer that is an error."""
        return cls(ok=False, error=_Error(kind=error.kind, what=error.what, remedy=error.remedy))

    def encode(self) -> bytes:
        """As a line."""
        return self.model_dump_json(exclude_none=True).encode() + b"\n"

    def take(self) -> dict[str, Any]:
        """The result, or the error raised."""
        if self.error is not None:
            raise ON_THE_WIRE.get(self.error.kind, HelperError)(self.error.what, self.error.remedy)
        return self.result


def parse(line: bytes) -> Request:
    """What one line asks for.

    Raises:
        Malformed: it is no request; says where.
    """
    try:
        return _ADAPTER.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        raise Malformed(f"no request: {where}: {first['msg']}"[:500], "see ebbtide.helper.protocol.requests") from None
