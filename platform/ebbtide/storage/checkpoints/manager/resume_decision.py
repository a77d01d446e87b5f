"""A person decides from which checkpoint a run goes on, since the newest is damaged or its content is not wanted.

That is an epoch of its own, which nobody trains in: its ``start.json`` names the checkpoint, so the next gang goes on
from there, and nothing newer counts any more. What was decided, by whom and what it costs stands in the run's
``decisions.jsonl``.

Not guaranteed: anything if the job starts just while this runs; then the one that comes second is told so, or nobody.
"""

import json
import os
from dataclasses import dataclass

from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.checkpoints.manager.verification import verify
from ebbtide.storage.checkpoints.run_directory.epoch_numbering import last_claim
from ebbtide.storage.checkpoints.run_directory.lineage import Claim, EpochFound, Start, newest
from ebbtide.storage.checkpoints.run_directory.run_paths import DECISIONS, CheckpointId, RunPaths
from ebbtide.storage.checkpoints.run_directory.run_ports import gang_leases
from ebbtide.storage.checkpoints.run_directory.run_survey import look
from ebbtide.storage.errors import Refused
from ebbtide.storage.files.durable_files import telling


@dataclass(frozen=True, slots=True)
class ResumeDecision:
    """What was decided.

    Attributes:
        epoch: that says so.
        origin: the checkpoint from which the run goes on.
        instead_of: the one from which it would have.
        lost_steps: finished steps that must be run again.
    """

    epoch: int
    origin: CheckpointId
    instead_of: CheckpointId | None
    lost_steps: int


def resume_from(
    checkpoints: RunCheckpoints, wanted: CheckpointId, *, who: str, now_s: float, ledger: str = ""
) -> ResumeDecision:
    """Let a run go on from ``wanted``. Reads all of it, and watches for up to a minute whether a gang lives.

    Args:
        checkpoints: of the run.
        wanted: a committed checkpoint.
        who: decides, for people.
        now_s: since 1970, for people.
        ledger: the identity of the one that the pool has now, for runs that do not say of which ledger they are; ""
            if it is not known.

    Raises:
        Refused: it is damaged, or the job runs, or the run goes on from it anyway.
        NotPublished: there is none.
        Superseded: a gang has begun meanwhile.
        StorageError: it cannot be read, or written down; nothing has changed.
    """
    paths = checkpoints.paths
    found = look(paths)
    before = newest(found)
    if before == wanted and last_claim(found) is not None:
        raise Refused(f"run {paths.run} goes on from {wanted} anyway: there is nothing to decide")
    if damage := verify(checkpoints, wanted):  # guard: a run goes on from a damaged checkpoint by no decision
        raise Refused(f"checkpoint {wanted} is damaged, so nothing can go on from it: {damage[0]}")
    if runs(paths):  # guard: a person decides nothing while a gang lives
        raise Refused(f"job {paths.run} runs, or is parked: stop it first, and decide then")
    decided = ResumeDecision(found[-1].epoch + 1, wanted, before, max(0, (before.step if before else 0) - wanted.step))
    _write_down(checkpoints, decided, who, now_s)  # guard: a decision is on record
    checkpoints.begin_epoch(decided.epoch, Start(wanted, _next_claim(found, ledger)))
    return decided


def runs(paths: RunPaths) -> bool:
    """Whether a gang of the run lives, on a slot or parked; takes up to a minute if one has died lately.

    Raises:
        StorageError: that cannot be told.
    """
    with telling("look at", paths.gang):
        if not paths.gang.is_dir():
            return False
    return bool(gang_leases(paths).living())


def _next_claim(found: list[EpochFound], ledger: str) -> Claim | None:
    """So that the next lease of the same ledger has this epoch, or one above it."""
    last = last_claim(found)
    if last is not None:
        return Claim(last[1].ledger, last[1].lease + 1)
    return Claim(ledger, 0) if ledger else None


def _write_down(checkpoints: RunCheckpoints, decided: ResumeDecision, who: str, now_s: float) -> None:
    path = checkpoints.paths.directory / DECISIONS
    line = {
        "t": now_s,
        "who": who,
        "decided": "go on from",
        "checkpoint": str(decided.origin),
        "instead_of": None if decided.instead_of is None else str(decided.instead_of),
        "lost_steps": decided.lost_steps,
        "epoch": decided.epoch,
    }
    with telling("write", path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, json.dumps(line).encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
    checkpoints.ports.disk.sync_directory(path.parent)
