"""The first process of a session's tree. Run by its path with ``python -I -S``: standard library only, small, no fds.

``leader.py FOLDER`` waits on standard input for the word that its supervisor has written down whose it is; without the
word it ends. Then it starts the command of ``FOLDER/spec.json``, adopts every orphan of it (subreaper), writes
``FOLDER/exit.json`` when the command has ended, and ends when nobody is left below it. It becomes part of the
session's image and comes back with it, so what it knows must be found in files: who keeps the session stands in
``FOLDER/keeper.json`` and is read again whenever the supervisor known so far is gone. With no supervisor left it kills
everything below it and itself: the watchdog does so too, and this holds if both were killed.

A supervisor in another pid namespace cannot be seen from here; then its death is the watchdog's to notice.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys

MYPY = False
if MYPY:  # typing itself is not loaded: what is loaded here is in every image
    from typing import Any, NoReturn

GO = b"g"  # on standard input
LOOK_S = 0.5  # between looks for the supervisor; also what a tree without supervisor and watchdog may live on
PR_SET_CHILD_SUBREAPER = 36
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SAME_TICKS = 2  # start times of one process, seen from two time namespaces, differ by what was rounded
BLOCKED = {signal.SIGCHLD, signal.SIGALRM}  # waited for, not handled
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)  # its end is that of its children
NOT_FOUND, NOT_RUN = 127, 126  # a shell's own exit codes


def main(folder: str) -> int:
    """Returns the command's exit code, as a shell would."""
    if os.read(0, len(GO)) != GO:  # guard: a leader that was not named runs nothing
        return NOT_RUN
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with open(f"{folder}/spec.json") as file:
        spec = json.load(file)
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    # No deadline: one that was taken from another machine's clock may be days away after a revival.
    signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    write(f"{folder}/leader.json", me())
    command = start(spec)
    keeper = read(f"{folder}/keeper.json")
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1 if code is None else code
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            write(f"{folder}/exit.json", {"code": code})
        if pid == 0:
            keeper = keeper_now(folder, keeper) or end_all()
            signal.sigwait(BLOCKED)


def start(spec: dict[str, Any]) -> int:
    """The command's pid. What hinders it is printed where the command would have printed."""
    pid = os.fork()
    if pid:
        return pid
    code = NOT_RUN
    try:
        for number in IGNORED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
        os.chdir(spec["cwd"])
        os.execvpe(spec["command"][0], spec["command"], spec["env"])
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN
        os.write(2, f"ebbtide: cannot run {spec['command'][0]} in {spec['cwd']}: {error}\n".encode())
    finally:
        os._exit(code)


def keeper_now(folder: str, keeper: dict[str, Any]) -> dict[str, Any] | None:
    """Who keeps this session now; None: nobody does."""
    if alive(keeper):
        return keeper
    keeper = read(f"{folder}/keeper.json")
    return keeper if alive(keeper) else None


def alive(keeper: dict[str, Any]) -> bool:
    """Whether that process lives. Of one in another pid namespace it is taken for granted."""
    if keeper["namespace"] != namespace():
        return True
    found = started(keeper["pid"])
    return keeper["boot"] == boot() and found is not None and abs(found - keeper["started"]) <= SAME_TICKS


def me() -> dict[str, Any]:
    """This process, in the words of ``keeper.json``."""
    return {"pid": os.getpid(), "started": started(os.getpid()), "boot": boot(), "namespace": namespace()}


def boot() -> str:
    """The id of this boot of this machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def namespace() -> str:
    """Names the pid namespace."""
    return os.readlink("/proc/self/ns/pid")


def started(pid: int) -> int | None:
    """Start time of a process that is no zombie, in ticks since boot; None if there is none.

    CRIU revives in a time namespace of its own, so that no clock jumps; start times of all processes are shifted there.
    """
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19]) - shifted_ticks()


def shifted_ticks() -> int:
    """By how much this time namespace is ahead of the machine's; see time_namespaces(7)."""
    try:
        with open("/proc/self/timens_offsets") as file:
            seconds, nanoseconds = next(line.split()[1:] for line in file if line.startswith("boottime"))
    except (OSError, StopIteration):
        return 0  # a kernel without time namespaces
    return round((int(seconds) + int(nanoseconds) / 1e9) * TICKS_PER_S)


def below(pid: int) -> list[int]:
    """Every process below this one, the lowest first."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in file.read().split():
                    found += [*below(int(child)), int(child)]
    except OSError:
        pass
    return found


def end_all() -> NoReturn:
    """Kill everything below, then this process."""
    while left := below(os.getpid()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(1)


def read(path: str) -> dict[str, Any]:
    """A small JSON file, which is always replaced whole."""
    with open(path) as file:
        found: dict[str, Any] = json.load(file)
        return found


def write(path: str, value: dict[str, Any]) -> None:
    """Replace a small JSON file; on the disk before it counts."""
    draft = f"{path}.{os.getpid()}"
    with open(draft, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
