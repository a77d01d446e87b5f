"""Whose a Ray cluster and a shared directory are: one pool has one of each, and a second one is refused.

Two marks carry the same random id: a key in the cluster's own store (put there only if absent, so that of two `up` at
once one wins; it is gone when the cluster is), and ``pool.json`` on the shared directory. They are read before
anything is started or changed, and need no arbiter: a pool whose arbiter is down is still somebody's.

Not guaranteed: whether a cluster on another machine that nobody can reach still lives. The arbiter's heartbeat on the
shared directory decides then; a network that is cut for longer than ``heartbeat.FRESH_S`` looks like a dead cluster,
and then the ledger's epochs still fence the older arbiter off.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from ebbtide.config.pool_file import PoolFile
from ebbtide.ledger.errors import LedgerError
from ebbtide.system.process import boot_id, is_alive, started_ticks
from ebbtide_autoscaler.journal.heartbeat import FRESH_S, beat_file, read_beat
from ebbtide_autoscaler.journal.records import recover

KEY = b"ebbtide:pool"


class Taken(ValueError):
    """The cluster or the directory belongs to another pool; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """A pool's mark. ``pids``: of the Ray processes that `up` started, with their start times; () = it joined."""

    id: str
    pool: str
    shared_dir: str
    address: str
    host: str
    boot: str
    pids: tuple[tuple[int, int], ...] = ()

    def alive_here(self) -> bool:
        """Whether a process of the claimed cluster still runs on this machine, in this boot."""
        return self.boot == boot_id() and any(started_ticks(pid) == started for pid, started in self.pids)


def _file(shared_dir: Path) -> Path:
    return shared_dir / "pool.json"


def claim_of(shared_dir: Path) -> Ownership | None:
    """The mark on a shared directory; None: there is none.

    Raises:
        Taken: there is one that cannot be read.
    """
    try:
        found = json.loads(_file(shared_dir).read_text())
        found["pids"] = tuple((int(pid), int(started)) for pid, started in found["pids"])
        return Ownership(**found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Taken(f"{_file(shared_dir)} says whose this directory is, and cannot be read: {error}") from error


def check_directory(config: PoolFile, *, known_id: str, now_s: Callable[[], float] = time.time) -> Ownership | None:
    """The mark on the file's shared directory, if this pool may use it.

    Args:
        config: the file to be brought up.
        known_id: id of the claim of the cluster that this user's record names; "" = none is on record.
        now_s: the clock, seconds since 1970.

    Raises:
        Taken: it is another pool's, or this pool runs there on a cluster that is not ours.
    """
    shared, name = Path(str(config.pool.shared_dir)), config.pool.name
    claim = claim_of(shared)
    owner = claim.pool if claim is not None else _pool_in_ledger(shared)
    if owner and owner != name:  # guard: another pool's directory is refused
        raise Taken(
            f"the shared directory {shared} belongs to the pool {owner}, and the file names the pool {name}: "
            "give this pool a directory of its own (pool.shared_dir)"
        )
    if claim is None or claim.id == known_id:
        return claim
    beat = read_beat(shared)
    if beat is not None and beat.boot == boot_id():  # guard: here a process is looked at, and not the clock
        fresh = is_alive(beat.pid, beat.started)  # here it can be known, and need not be guessed
    else:
        fresh = beat is not None and now_s() - beat.at_s < FRESH_S
    if (
        claim.alive_here()  # guard: a directory whose pool has processes here is refused
        or fresh  # guard: a directory whose arbiter gives signs of life elsewhere is refused
    ):
        where = f"on {claim.host} (Ray at {claim.address})"
        last = f", its arbiter's last sign of life {max(0.0, now_s() - beat.at_s):.0f} s ago" if beat else ""
        raise Taken(
            f"the pool {name} runs already {where}{last}: the shared directory {shared} is in use. "
            "Use the EBBTIDE_HOME that it was brought up with, or name another shared_dir"
        )
    return claim


def _pool_in_ledger(shared: Path) -> str:
    """The pool of a directory without a mark, from its ledger; "" if it has none."""
    try:
        config = recover(shared / "ledger").config
    except LedgerError as error:
        raise Taken(f"the ledger in {shared / 'ledger'} cannot be read: {error}") from error
    return str(json.loads(config)["pool"]["name"]) if config else ""


def check_cluster(config: PoolFile, address: str) -> Ownership | None:
    """The mark on the cluster that this process has joined, if this pool may use it.

    Raises:
        Taken: another pool has it, or this pool with another shared directory.
    """
    shared, name = str(Path(str(config.pool.shared_dir)).resolve()), config.pool.name
    found = cluster_claim()
    if found is not None and (found.pool, found.shared_dir) != (name, shared):
        raise Taken(
            f"the Ray cluster at {address} belongs to the pool {found.pool} with the shared directory "
            f"{found.shared_dir}; the file names the pool {name} with {shared}. "
            "One cluster has one pool: add endpoints and jobs to that one, or take it down first (`ebbtide down`)"
        )
    return found


def claim_cluster(config: PoolFile, address: str, pids: tuple[tuple[int, int], ...]) -> Ownership:
    """Mark the cluster that this process has joined, unless it is marked already.

    Raises:
        Taken: another pool has it, or this pool with another shared directory.
    """
    shared = str(Path(str(config.pool.shared_dir)).resolve())
    mine = Ownership(secrets.token_hex(8), config.pool.name, shared, address, socket.gethostname(), boot_id(), pids)
    _internal_kv_put(KEY, json.dumps(asdict(mine)).encode(), overwrite=False)
    found = check_cluster(config, address)
    assert found is not None, "it was put there a moment ago"
    return found


def cluster_claim() -> Ownership | None:
    """The mark on the cluster that this process has joined."""
    raw = _internal_kv_get(KEY)
    if not raw:
        return None
    found = json.loads(raw)
    found["pids"] = tuple((int(pid), int(started)) for pid, started in found["pids"])
    return Ownership(**found)


def mark_directory(claim: Ownership) -> None:
    """Put the claim on its shared directory, atomically."""
    path = _file(Path(claim.shared_dir))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(asdict(claim), indent=2))
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def unmark_cluster() -> None:
    """Let go of the cluster that this process has joined."""
    _internal_kv_del(KEY)


def unmark_directory(shared_dir: Path) -> None:
    """Let go of a shared directory; its ledger still says whose it is."""
    _file(shared_dir).unlink(missing_ok=True)


def release_directory(shared_dir: Path, claim_id: str) -> None:
    """Let go of a shared directory that this claim has, with its arbiter's last sign of life; of another's: nothing.

    Raises:
        OSError, Taken: the mark cannot be read or removed.
    """
    claim = claim_of(shared_dir)
    if claim is not None and claim.id == claim_id:  # guard: the mark of another cluster stays
        unmark_directory(shared_dir)
        beat_file(shared_dir).unlink(missing_ok=True)
