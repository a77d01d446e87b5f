"""Looking at a run's directory: which epochs and checkpoints there are, and from where each gang went on.

Cheap: two listings, and one look per checkpoint. Only a directory ``step-<n>`` with a COMMIT in it counts; what is
being written or removed has a name with a dot. Whether a checkpoint is whole is seen when it is opened.

Not guaranteed: that a listing is fresh. NFS clients cache them for up to 60 s; ranks that must agree ask again.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ebbtide.storage.checkpoints.run_directory.lineage import Claim, EpochFound, Start, newest, overtaken_by
from ebbtide.storage.checkpoints.run_directory.run_paths import (
    START,
    TEMPORARY,
    CheckpointId,
    RunPaths,
    epoch_of,
    step_of,
)
from ebbtide.storage.errors import Corrupt, Refused, Superseded
from ebbtide.storage.files.durable_files import TEMPORARY_SUFFIX, Disk, is_real_directory, read_small, telling
from ebbtide.storage.names import COMMIT

SCHEMA = 1
MAX_START_BYTES = 4096
_START_CUT_OFF = re.compile(rf"\.{re.escape(START)}\.[0-9a-f]+{re.escape(TEMPORARY_SUFFIX)}")  # see `Disk.replace`


def look(paths: RunPaths) -> list[EpochFound]:
    """All epochs of a run, in order.

    Raises:
        Corrupt: nobody can tell from where a gang went on.
        TransferFailed: the directory cannot be looked at.
    """
    found = []
    for number in epochs(paths):
        directory = paths.epoch(number)
        steps = (step for step in _numbers(directory, step_of) if _has_commit(directory / f"step-{step}"))
        found.append(EpochFound(number, frozenset(steps), read_start(paths, number)))
    return found


def epochs(paths: RunPaths) -> list[int]:
    """The epochs that have a directory, in order."""
    return sorted(_numbers(paths.directory, epoch_of))


def newest_of(paths: RunPaths) -> CheckpointId | None:
    """The checkpoint from which the run goes on; None before the first. Raises as `look` does."""
    return newest(look(paths))


def check_epoch(paths: RunPaths, epoch: int) -> None:
    """Go on only if no later gang has begun.

    Raises:
        Superseded: one has.
    """
    later = overtaken_by(map(EpochFound, epochs(paths)), epoch)
    if later is not None:
        raise Superseded(
            f"run {paths.run}: epoch {later} has begun, and this gang is of epoch {epoch}: it was replaced, and nobody "
            "reads what it writes"
        )


def begin_epoch(
    paths: RunPaths,
    disk: Disk,
    epoch: int,
    start: Start | None = None,
    *,
    claim: Claim | None = None,
    check: Callable[[CheckpointId], None] | None = None,
) -> Start:
    """Say from which checkpoint the gang of ``epoch`` goes on; what was said before stays.

    Args:
        paths: of the run.
        disk: makes the changes.
        epoch: of the gang, higher than that of any before it.
        start: from where; from the newest checkpoint, if left out.
        claim: the gang's lease, if ``start`` is left out.
        check: looks at the checkpoint that was found, before anybody is told to go on from it; what it raises goes
            through, and nothing is said.

    Returns:
        What stands there now.

    Raises:
        Superseded: a later gang has begun, or one of another lease in this epoch: it was chosen before the pool was
            made anew, and the gang has stood still since.
        Refused: the checkpoint to go on from is of this epoch or a later one.
    """
    check_epoch(paths, epoch)  # guard: no gang and no save begins once a later gang has begun
    # Before looking: a gang that removes something sees it from now on.
    # guard: the directory of an epoch is there before its gang looks for the newest
    disk.make_directory(paths.epoch(epoch))
    said = _said(paths, epoch, claim)
    if said is not None:  # guard: what a gang has said of its beginning stays
        return said
    if start is None:
        # guard: a gang goes on from what is below its own epoch
        start = Start(newest([one for one in look(paths) if one.epoch < epoch]), claim)
        if check is not None and start.origin is not None:
            check(start.origin)  # guard: what a start finds wrong is said before the start is written
    origin = start.origin
    # guard: no gang can be made to go on from its own or a later epoch
    if origin is not None and origin.epoch >= epoch:
        raise Refused(f"run {paths.run}: epoch {epoch} cannot go on from {origin}: give the gang a higher epoch")
    fields = {"schema": SCHEMA, "run": paths.run, "epoch": epoch, "from": None if origin is None else str(origin)}
    if start.claim is not None:
        fields |= {"ledger": start.claim.ledger, "lease": start.claim.lease}
    disk.replace(paths.start(epoch), json.dumps(fields).encode() + b"\n")
    check_epoch(paths, epoch)  # guard: a gang that is replaced while it begins hears of it
    _said(paths, epoch, claim)  # guard: a gang of another ledger that said the same epoch just after this one is seen
    return start


def _said(paths: RunPaths, epoch: int, claim: Claim | None) -> Start | None:
    """From where a gang of this epoch went on; raises Superseded if its lease is known, and another than ours."""
    said = read_start(paths, epoch)
    # guard: a gang of another ledger that has chosen the same epoch is turned away
    if said is not None and said.claim is not None and claim is not None and said.claim != claim:
        raise Superseded(
            f"run {paths.run}: epoch {epoch} has begun with lease {said.claim.lease} of ledger {said.claim.ledger}, "
            f"and this gang has lease {claim.lease} of ledger {claim.ledger}: the pool was made anew meanwhile; if "
            "this gang is the younger one, start it again"
        )
    return said


def read_start(paths: RunPaths, epoch: int) -> Start | None:
    """From where the gang of an epoch went on; None if nobody said.

    Raises:
        Corrupt: what stands there makes no sense.
        Refused: a newer version wrote it.
    """
    path = paths.start(epoch)
    with telling("look at", path):
        if not path.exists():  # without a second look: a gang says it before it writes anything else
            return None
    try:
        fields = json.loads(read_small(path, MAX_START_BYTES))
        schema, run, number, text = fields["schema"], fields["run"], fields["epoch"], fields["from"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"this does not say from where a gang went on: {error}", path) from error
    if isinstance(schema, int) and schema > SCHEMA:
        raise Refused(f"{path} has schema {schema}; this version of ebbtide reads {SCHEMA}: update it")
    # guard: a start that makes no sense is never passed over
    if (schema, run, number) != (SCHEMA, paths.run, epoch) or not isinstance(text, str | None):
        raise Corrupt(f"this is not about epoch {epoch} of run {paths.run}", path)
    try:
        origin = None if text is None else CheckpointId.parse(text)
    except Refused as error:
        raise Corrupt(f"this does not say from where a gang went on: {error}", path) from error
    if origin is not None and origin.epoch >= epoch:  # guard: no gang has gone on from its own or a later epoch
        raise Corrupt(f"epoch {epoch} cannot have gone on from {origin}", path)
    return Start(origin, _claim(fields))


def _claim(fields: dict[str, object]) -> Claim | None:
    ledger, lease = fields.get("ledger"), fields.get("lease")
    return Claim(ledger, lease) if isinstance(ledger, str) and type(lease) is int and lease >= 0 else None


def temporaries(paths: RunPaths) -> Iterator[tuple[int, Path]]:
    """What is being written or removed, or was left so, with its epoch."""
    for number in epochs(paths):
        for name in _names(paths.epoch(number)):
            # guard: what others put into an epoch is not removed
            if name.startswith(TEMPORARY) or _START_CUT_OFF.fullmatch(name):
                yield number, paths.epoch(number) / name


def _numbers(directory: Path, meaning: Callable[[str], int | None]) -> set[int]:
    return {number for name in _names(directory) if (number := meaning(name)) is not None}


def _names(directory: Path) -> list[str]:
    with telling("list", directory), suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(directory)
    return []


def _has_commit(directory: Path) -> bool:
    with telling("look at", directory):
        return (
            is_real_directory(directory)  # guard: a link is no checkpoint
            and (directory / COMMIT).exists()  # guard: only what has a COMMIT is a checkpoint
        )
