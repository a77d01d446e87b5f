"""``ref.json``: which checkpoint of a job counts. Needs no torch: a controller only asks how far its job is safe."""

import json
from dataclasses import dataclass
from pathlib import Path

from ebbtide_train.session.errors import CheckpointMismatch

FORMAT = 1
NAME = "ref.json"


@dataclass(frozen=True, slots=True)
class Ref:
    """The committed checkpoint and what it is of."""

    step: int  # finished steps
    checkpoint: str  # folder, relative to the run directory
    world: int
    lease_epoch: int
    seed: int
    global_batch: int
    dataset_len: int  # 0: not known yet
    format: int = FORMAT


def read_ref(run_dir: Path) -> Ref | None:
    """The committed checkpoint, or None before the first commit.

    Raises:
        CheckpointMismatch: ref.json is not ours or of another format.
        OSError: the filesystem does not answer.
    """
    path = run_dir / NAME
    try:
        ref = Ref(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise CheckpointMismatch(f"{path} is no checkpoint reference ({error}); move it away to start anew") from error
    if ref.format != FORMAT:
        raise CheckpointMismatch(f"{path} has format {ref.format}, this version reads {FORMAT}")
    return ref
