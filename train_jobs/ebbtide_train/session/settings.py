"""What a session is told at its start; the same on every rank but for ``rank``, ``node`` and the lease's meaning."""

from dataclasses import dataclass
from pathlib import Path

from ebbtide.client.messages import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """One rank's place in its gang, and the job's promises about data and durability."""

    job: str
    incarnation: str
    run_dir: Path  # the job's directory on the shared filesystem
    rank: int
    world: int
    lease: Lease  # its epoch also names this gang: every start of a gang needs a higher one
    node: str
    global_batch: int  # samples per step, whatever the number of workers
    seed: int = 0  # of the order of samples and of every rank's random numbers
    micro_batch_max: int = 64  # samples per forward pass at most; more are accumulated
    checkpoint_every_s: float = 300.0  # of running; a crash loses at most about this much
    ledger: str = ""  # the identity of the ledger within which lease epochs grow; "": there is only one
    keep_checkpoints: int = 2  # the committed one, and the one that a slow reader may still have open
    bucket_cap_mb: float = 25.0  # torch's own default; part of the reduction order, so never change it in a run
    in_place: bool = True  # may park without leaving the process
    deterministic: bool = True
    meeting_root: Path | None = None  # node-local folder in which the ranks meet; None: within run_dir
    device: str = "auto"  # "cuda" where there is one, else "cpu"
    group_timeout_s: float = 1800.0  # torch's default for collectives; rank 0 may be writing a checkpoint meanwhile
    last_commit_s: float = 600.0  # of trying to publish the finished state; after that it counts as failed
    lock_timeout_s: float = 60.0  # for a slot that the lease says is ours

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} is not below world {self.world}")
        if self.global_batch < self.world:
            raise ValueError(
                f"global_batch {self.global_batch} is smaller than the number of workers {self.world}: "
                "some ranks would have no sample; raise it or lower workers_max"
            )
        if self.micro_batch_max < 1:
            raise ValueError(f"micro_batch_max {self.micro_batch_max} must be at least 1")
