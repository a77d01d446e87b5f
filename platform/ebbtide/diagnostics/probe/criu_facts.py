"""Whether CRIU works on this node, and what of a workload's process tree it could not put into an image.

The rules are the helper's own (``ebbtide.helper.criu``), so that a probe refuses exactly what the helper would. A GPU
that a process has open is no objection here: the cost model asks for the driver, which takes the process off first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ebbtide.diagnostics.probe.fact import Fact, hindering
from ebbtide.diagnostics.probe.helper_facts import HelperSaid
from ebbtide.helper.criu.connections import holders_elsewhere, sockets_of
from ebbtide.helper.criu.criu_program import VARIABLE, Criu, NoCriu, find
from ebbtide.helper.criu.objections import Ends, Objection, objections, pipes, socket_inodes
from ebbtide.helper.criu.proc_tree import Member, look_at
from ebbtide.snapshot.tiers import Means

_BLOCKED = hindering(Means.CRIU)
_GPU = "/dev/nvidia"

Find = Callable[[Mapping[str, str], Path], Criu | NoCriu]


def program_fact(said: HelperSaid, environ: Mapping[str, str], checkout: Path, *, search: Find = find) -> Fact:
    """Whether there is a CRIU that works here: by the helper, else by looking as it would."""
    if said.driver is not None:
        where, found = "the helper", Criu(Path("criu"), said.criu) if said.criu else NoCriu(said.why_not_criu)
    else:
        where, found = f"{VARIABLE}, PATH, and the checkout", search(environ, checkout)
    if isinstance(found, NoCriu):
        return Fact("criu.program", found.why, where, None, _BLOCKED, f"make criu, or name one by {VARIABLE}")
    return Fact("criu.program", f"CRIU {found.version} works on this kernel", where, found.version)


def ray_worker_fact() -> Fact:
    """Of every training job: its ranks are Ray's processes."""
    return Fact(
        "criu.ray_worker",
        "its ranks are Ray workers, whose sockets to the raylet no image can hold",
        "the way jobs are started",
        True,
        _BLOCKED,
        "run it as a session of its own: ebbtide run -- COMMAND",
    )


def tree_facts(roots: Sequence[int]) -> tuple[Fact, ...]:
    """Everything about these process trees that is in CRIU's way; empty: nothing that can be seen from outside."""
    found = []
    for pid in roots:
        try:
            against = _objections(pid)
        except ProcessLookupError:
            continue  # it has ended; the probe says so elsewhere
        except OSError as error:
            what = f"process {pid} cannot be looked into ({error.strerror or error})"
            against = (Objection(what, "probe as the user that it runs as"),)
        found += [
            Fact("criu.tree", one.what, f"/proc/{pid} and its children", pid, _BLOCKED, one.remedy) for one in against
        ]
    return tuple(found)


def _objections(pid: int) -> tuple[Objection, ...]:
    tree = look_at(pid)
    tree = replace(tree, members=tuple(_off_gpu(member) for member in tree.members))
    inside = frozenset(member.pid for member in tree.members)
    inodes = socket_inodes(tree)
    return objections(tree, Ends(sockets_of(pid, inodes) if inodes else {}, holders_elsewhere(pipes(tree), inside)))


def _off_gpu(member: Member) -> Member:
    """As it will be when the driver has taken it off its GPUs."""
    return replace(
        member,
        opened=tuple(one for one in member.opened if not one.target.startswith(_GPU)),
        mapped=frozenset(name for name in member.mapped if not name.startswith(_GPU)),
    )
