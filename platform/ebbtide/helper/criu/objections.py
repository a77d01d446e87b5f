"""Why a tree cannot be put into an image, each reason with what would work.

The rules are CRIU's (4.1 and 4.2, on kernel 6.18) and were tried one by one; two are ours, because CRIU goes on and the
process is harmed silently: a pipe whose other end is outside (it would write to nobody), and a deleted file (the next
node does not have it).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ebbtide.helper.criu.connections import Connection, Kind
from ebbtide.helper.criu.proc_tree import Member, Opened, Tree

DEVICES = frozenset({"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"})
# What CRIU puts into an image, by the names of /proc/PID/fd.
ANONYMOUS = frozenset({"[eventfd]", "[eventpoll]", "[signalfd]", "[timerfd]", "inotify"})
_GPU = "/dev/nvidia"
GHOST_LIMIT_BYTES = 1 << 20  # CRIU's own for deleted files that it carries along (--ghost-limit)


@dataclass(frozen=True, slots=True)
class Objection:
    """One reason against, with what would work."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} ({self.remedy})"


@dataclass(frozen=True, slots=True)
class Ends:
    """What is at the other ends.

    Attributes:
        sockets: by inode.
        outside: by pipe (``pipe:[N]``), a process outside that has it open.
        takes_inet: this CRIU can dump TCP and UDP sockets.
    """

    sockets: Mapping[int, Connection]
    outside: Mapping[str, int]
    takes_inet: bool = True


def socket_inodes(tree: Tree) -> frozenset[int]:
    """Inodes of all sockets that the tree has open."""
    return frozenset(_inode(one.target) for m in tree.members for one in m.opened if one.target.startswith("socket:["))


def pipes(tree: Tree) -> frozenset[str]:
    """Names of all pipes that the tree has open."""
    return frozenset(one.target for m in tree.members for one in m.opened if one.target.startswith("pipe:["))


def without_gpus(tree: Tree) -> Tree:
    """A tree as it will be when the driver has taken it off its GPUs: then no process has one open any more."""
    return Tree(
        tuple(
            replace(
                member,
                opened=tuple(one for one in member.opened if not one.target.startswith(_GPU)),
                mapped=frozenset(name for name in member.mapped if not name.startswith(_GPU)),
            )
            for member in tree.members
        )
    )


def objections(tree: Tree, ends: Ends, *, stopped: bool = False) -> tuple[Objection, ...]:
    """Everything that is against it, at most once each; empty: nothing that can be seen from outside.

    Args:
        tree: as it was seen.
        ends: what its sockets and pipes are connected to.
        stopped: the tree was stopped by us, so that is no objection.
    """
    inodes = socket_inodes(tree)
    found = [*_about_sessions(tree)]
    for member in tree.members:
        found += _about_process(member, stopped)
        for one in member.opened:
            found += _about_file(member, one, ends, inodes)
    return tuple(dict.fromkeys(found))


def _about_sessions(tree: Tree) -> Iterator[Objection]:
    inside = {one.pid for one in tree.members}
    if tree.root.session != tree.root.pid:
        yield Objection(
            f"process {tree.root.pid} is not the leader of a session",
            "start it in a new one: setsid, start_new_session",
        )
    for member in tree.members[1:]:
        if member.session not in inside:
            yield Objection(f"process {member.pid} belongs to a session of others", "start it inside the tree")


def _about_process(member: Member, stopped: bool) -> Iterator[Objection]:
    who = f"process {member.pid} ({member.name})"
    if member.tty:
        yield Objection(f"{who} has a terminal", "start it in a new session, with its output to a file")
    if member.state in ("T", "t") and not stopped:
        yield Objection(f"{who} is stopped", "let it go on with SIGCONT first")
    if member.tracer:
        yield Objection(f"{who} is traced by process {member.tracer}", "detach the debugger")
    if member.foreign_namespaces:
        spaces = ", ".join(member.foreign_namespaces)
        yield Objection(f"{who} is in other namespaces ({spaces})", "run the helper in the same container")
    for name in sorted(member.mapped):
        if "io_uring" in name:
            yield _io_uring(who)
        elif name.startswith(_GPU):
            yield _on_gpu(who, name)


def _about_file(member: Member, one: Opened, ends: Ends, inodes: frozenset[int]) -> Iterator[Objection]:
    who, target = f"process {member.pid} ({member.name})", one.target
    if target.startswith("socket:["):
        yield from _about_socket(who, ends.sockets[_inode(target)], ends, inodes)
    elif target.startswith("pipe:["):
        if target in ends.outside:
            yield Objection(
                f"{who} has a pipe to process {ends.outside[target]} as descriptor {one.fd}",
                "let its output go to a file, its input come from /dev/null",
            )
    elif target.startswith("anon_inode:"):
        kind = target.removeprefix("anon_inode:")
        if "io_uring" in kind:
            yield _io_uring(who)
        elif kind not in ANONYMOUS:
            yield Objection(f"{who} has {target} open", "CRIU cannot put that into an image: close it before")
    elif target.startswith(("/dev/pts/", "/dev/tty", "/dev/console", "/dev/ptmx")):
        yield Objection(
            f"{who} has the terminal {target} open", "let its output go to a file, its input from /dev/null"
        )
    elif target.startswith(_GPU):
        yield _on_gpu(who, target)
    elif target.startswith("/dev/") and not target.startswith("/dev/shm/") and target not in DEVICES:
        yield Objection(f"{who} has the device {target} open", "close it before")
    elif target.endswith(" (deleted)") and target.startswith("/") and (one.size_bytes or 0) > GHOST_LIMIT_BYTES:
        yield Objection(
            f"{who} has a deleted file of {one.size_bytes} bytes open: {target}", "keep the file, or close it"
        )


def _about_socket(who: str, one: Connection, ends: Ends, inodes: frozenset[int]) -> Iterator[Objection]:
    if one.kind is Kind.UNIX and one.peer and one.peer not in inodes:
        yield Objection(
            f"{who} has a unix socket to a process outside its tree", "close it before, and connect again after"
        )
    elif one.kind is Kind.TCP_CONNECTED and one.peer not in inodes:
        yield Objection(f"{who} has a TCP connection to outside its tree", "close it before, and connect again after")
    elif one.kind in (Kind.TCP_LISTENING, Kind.TCP_CONNECTED, Kind.UDP) and not ends.takes_inet:
        yield Objection(f"{who} has a TCP or UDP socket", "CRIU 4.2 or later is needed for that on this kernel")
    elif one.kind is Kind.OTHER:
        yield Objection(f"{who} has a socket that CRIU cannot put into an image", "close it before")


def _io_uring(who: str) -> Objection:
    return Objection(
        f"{who} uses io_uring", "start it without: USE_LIBUV=0 for torch's store, or a seccomp filter for others"
    )


def _on_gpu(who: str, path: str) -> Objection:
    return Objection(f"{who} has {path} open", "take it off its GPU first: lock and checkpoint, by the driver")


def _inode(target: str) -> int:
    return int(target.partition("[")[2].rstrip("]"))
