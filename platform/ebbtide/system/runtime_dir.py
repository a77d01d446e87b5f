"""Where a pool keeps what belongs to one node: the same path on each of its nodes, short enough for the sockets in it.

It is below TMPDIR where that will do. A batch system's is often too long: then it is below /tmp, and `up` says so.
"""

import os
import re
import tempfile
from hashlib import sha256
from pathlib import Path

HELPER_SOCKET = "helper.sock"  # beside the slot locks' folder
IPC = "ipc"  # the folder of the engines' own sockets, beside it too

SOCKET_BYTES = 107  # of a socket's path: sun_path has 108 and ends with a zero (unix(7))
# The longest below a pool's folder: Ray's, of the tenth raylet of a machine, with the largest pid (proc(5): pid_max).
RAY_SOCKET = "/ray-abcdef/session_2026-01-31_12-59-59_123456_4194304/sockets/plasma_store.9"
LONGEST = SOCKET_BYTES - len(RAY_SOCKET)
# What others make directly below TMPDIR: vLLM a uuid, Python "pymp-12345678/listener-12345678", torch
# "torch-shm-dir-123456/manager.sock".
LONGEST_TMPDIR = SOCKET_BYTES - len("/01234567-0123-0123-0123-0123456789ab")
SHORTEST_NAME = 6  # of a pool's folder: "~" and 5 digits of a hash
ELSEWHERE = ("/tmp", "/var/tmp", "/dev/shm")
PLAIN = re.compile(r"[A-Za-z0-9/._+~-]+")  # Ray's raylet splits command lines at spaces


class NoRuntimeDir(OSError):
    """No folder of this machine can hold a pool's sockets."""


def runtime_dir(pool: str, uid: int | None = None) -> Path:
    """The node-local folder of ``pool``, at most ``LONGEST`` bytes; a name that is too long for that is shortened.

    Args:
        pool: its name.
        uid: of the user that the pool runs as; default: ours.

    Raises:
        NoRuntimeDir: neither TMPDIR nor any of the usual places will do.
    """
    base = _base(uid)
    room = LONGEST - len(os.fsencode(base)) - 1
    if len(pool) <= room:
        return base / pool
    tail = "~" + sha256(pool.encode()).hexdigest()[: min(6, room - 1)]  # "~" is in no pool's name
    return base / (pool[: room - len(tail)] + tail)


def helper_socket(pool: str, uid: int | None = None) -> Path:
    """Where the node's helper of ``pool``, which runs as user ``uid`` (default: ours), listens."""
    return runtime_dir(pool, uid) / HELPER_SOCKET


def tmpdir_passed_over() -> str:
    """One line that says why a pool's folder is not below TMPDIR, and where it is; "" if it is, or if none is named."""
    named = os.environ.get("TMPDIR", "")
    fault = _fault(named, None) if named else ""
    return f"TMPDIR={named} {fault}: sockets and Ray's files go below {_base(None)}" if fault else ""


def tmpdir_of_processes() -> str:
    """TMPDIR for what a pool runs: that of this process, or a short one if it has no room for anybody's sockets."""
    named = os.environ.get("TMPDIR", "")
    fits = Path(named).is_absolute() and len(os.fsencode(named)) <= LONGEST_TMPDIR and _writable(named)
    return named if fits else str(_base(None).parent)


def _base(uid: int | None) -> Path:
    folder = f"ebbtide-{os.getuid() if uid is None else uid}"
    try:
        usual = tempfile.gettempdir()
    except OSError:
        usual = ""
    named = os.environ.get("TMPDIR", "")
    relative = bool(named) and not Path(named).is_absolute()
    for place in dict.fromkeys((*(() if relative or not usual else (usual,)), *ELSEWHERE)):
        if not _fault(place, uid):
            return Path(place) / folder
    raise NoRuntimeDir(
        f"a pool's sockets need a folder that can be written and has a path of at most "
        f"{LONGEST - SHORTEST_NAME - len(folder) - 2} bytes, and neither TMPDIR={named or '(unset)'} nor any of "
        f"{', '.join(ELSEWHERE)} is one: set TMPDIR to one"
    )


def _fault(place: str, uid: int | None) -> str:
    """Why a pool's folder cannot be below ``place``; "" if it can."""
    most = LONGEST - SHORTEST_NAME - len(f"//ebbtide-{os.getuid() if uid is None else uid}")
    if not Path(place).is_absolute():
        return "is relative, and would be another folder for each command"
    if not _writable(place):
        return "is no folder that can be written"
    if not PLAIN.fullmatch(place):
        return "has characters that Ray cannot take on its command lines"
    if len(os.fsencode(place)) > most:
        return f"is too long for sockets ({len(os.fsencode(place))} bytes, at most {most})"
    return ""


def _writable(place: str) -> bool:
    return os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)
