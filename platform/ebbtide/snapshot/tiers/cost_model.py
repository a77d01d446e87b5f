"""The words of the cost model: tiers, what is known of a workload on one node, what is asked of it, what it would cost.

All of it is about one node and the workload's processes there; the slowest node of a gang frees the last slot.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ebbtide.snapshot.tiers.obstacles import Hindrance, Means, Obstacle
from ebbtide.snapshot.tiers.transfer_rates import Rates

RESTART_S = 20.0  # start of the workers, imports, process groups: 10-20 s on CPUs; the default of jobs' min_runtime_s
EXIT_S = 2.0  # assumed: a process with a CUDA context and mapped host memory needs about a second to be gone
REMAINDER_BYTES = 1 << 30  # assumed, per GPU: CUDA context, workspaces of cuBLAS and NCCL, stray tensors
DEADLINE_S = 30.0  # the default of jobs' grace_s


class Tier(Enum):
    """The ways to take state off a slot, fastest first."""

    EVICT_AND_CUDA = "evict_and_cuda"  # tracked storages to host memory, the rest by CUDA checkpoint; the process stays
    CUDA_CHECKPOINT = "cuda_checkpoint"  # everything by the driver, also of processes that know nothing of us
    EVICT_AND_SPILL = "evict_and_spill"  # tracked storages to a portable checkpoint, through host memory if it has room
    STOP_AND_RESTART = "stop_and_restart"  # a portable checkpoint, and the processes end
    CRIU_IMAGE = "criu_image"  # an image of the process tree
    KILL = "kill"  # at the deadline; what was done since the last checkpoint is lost, and charged


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One workload on one node.

    Attributes:
        tracked_bytes: of all its workers there together: what can be evicted.
        remainder_bytes: what else they hold on their GPUs (context, workspaces, stray tensors); 0 without a GPU.
        process_bytes: private host memory of its processes, which a CRIU image holds too.
        host_free_bytes: host memory that can be taken without harm to others; None: not known, and none is taken.
        host_budget_bytes: of the pool's budget for parked state; None: the workload is under no budget.
        disk_free_bytes: of the shared directory; None: not known, and none is taken.
        gpus: that its workers use there; 0: a machine where CPU tensors count as device memory.
        cooperates: it has safe points and tracked state; without, only the driver and CRIU can take it.
        safe_point_s: until the ranks agree on a safe point: one step.
        restart_s: from "start" to the first step, the reading of the checkpoint left out.
        kill_loses_s: of work that is done again after a kill, at most; None: it has no checkpoint, all is lost.
        obstacles: everything that was found in the way of a means.
    """

    tracked_bytes: int
    remainder_bytes: int = 0
    process_bytes: int = 0
    host_free_bytes: int | None
    host_budget_bytes: int | None = None
    disk_free_bytes: int | None
    gpus: int = 0
    cooperates: bool = True
    safe_point_s: float = 0.0
    restart_s: float = RESTART_S
    kill_loses_s: float | None = 60.0
    rates: Rates = field(default_factory=Rates)
    obstacles: tuple[Obstacle, ...] = ()

    @property
    def room_bytes(self) -> int | None:
        """Host memory that this workload may take."""
        if self.host_free_bytes is None or self.host_budget_bytes is None:
            return self.host_free_bytes
        return min(self.host_free_bytes, self.host_budget_bytes)

    def lacks(self, means: Means) -> tuple[Hindrance, ...]:
        """What is in the way of one means."""
        return tuple(obstacle.hindrance for obstacle in self.obstacles if means in obstacle.hinders)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked of the workload.

    Attributes:
        deadline_s: when it is killed if it holds its slots still; a job's grace.
        expected_s: how long it will have to do without; None: nobody knows, and it is taken to be short.
        node_goes: it must not leave anything in this node's memory.
        other_workers: it shall come back on another number of workers.
    """

    deadline_s: float = DEADLINE_S
    expected_s: float | None = None
    node_goes: bool = False
    other_workers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one way would cost.

    Attributes:
        free_s: from the decision until the slots are free.
        resume_s: from "here are your slots" to the next step.
        durable_s: from the decision until the state would survive the node; None: it never would.
        ram_bytes: of this node, at most, while it is away.
        disk_bytes: of the shared directory.
        lost_s: of work at most, that is done again; None: all of it.
        way: in words, with the numbers.
    """

    tier: Tier
    free_s: float
    resume_s: float
    durable_s: float | None
    ram_bytes: int
    disk_bytes: int
    lost_s: float | None = 0.0
    way: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The answer.

    Attributes:
        reason: why this tier, with the numbers it rests on.
        estimates: for every tier, also the rejected ones: what it would cost if nothing were in the way.
        hindrances: why a tier was rejected, for each that was.
        fallbacks: tiers that hold too, in the order in which to try them; the last is always `Tier.KILL`.
    """

    tier: Tier
    reason: str
    estimates: Mapping[Tier, Estimate]
    hindrances: Mapping[Tier, tuple[Hindrance, ...]]
    fallbacks: tuple[Tier, ...]

    @property
    def rejected(self) -> tuple[tuple[Tier, str], ...]:
        """Each rejected tier with all that is in its way."""
        return tuple((tier, "; ".join(one.what for one in found)) for tier, found in self.hindrances.items())
