"""Gangs whose host memory lies in regions of a folder, as an agent would lend it; without an agent."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ebbtide.client.messages import DesiredState, Lease, SlotRef
from ebbtide.snapshot.eviction.tensor_eviction import Evicted
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.region_creation import SUFFIX, create_region
from ebbtide.snapshot.regions.region_states import RegionKey
from ebbtide.snapshot.regions.region_view import look
from ebbtide_train.session import session as session_module
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.session.errors import CheckpointFailed
from ebbtide_train.session.loop import park as park_module
from ebbtide_train.session.loop.member import Member
from ebbtide_train.session.parking import host_state as host_state_module
from ebbtide_train.session.parking.host_region import LentRegion
from ebbtide_train.session.parking.host_state import HostState
from ebbtide_train.session.parking.leftover_regions import Left, Taken
from ebbtide_train.session.parking.occupancy import Occupancy
from ebbtide_train.session.parking.takeover import publish_region
from ebbtide_train.verification.control_run import GangPlan, run_rank
from tests.train_jobs import gangs


def folder_of(run_dir: Path) -> Path:
    """Where the regions of a test's gangs lie."""
    folder = run_dir.with_name(run_dir.name + "-memory")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class FolderLender:
    """Lends without a budget."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lend(self, key: RegionKey, size_bytes: int) -> Path:
        return create_region(self._folder, key, size_bytes)


class FolderLeft:
    """One node, whose memory is a folder; it answers at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def nodes(self, known: Sequence[str]) -> Sequence[str]:
        return ["here"]

    def look(self, node: str) -> Sequence[Left] | None:
        return [Left(node, look(path)) for path in sorted(self._folder.glob(f"*{SUFFIX}"))]

    def publish(self, left: Left, run_dir: Path, *, keep: int) -> Taken:
        return publish_region(left.region.path, run_dir, keep=keep)

    def settle(self, node: str, job: str, lease_epoch: int) -> None:
        for one in self.look(node) or ():
            if (one.region.key.job, one.region.key.lease_epoch) == (job, lease_epoch):
                one.region.path.unlink()


def rank_main(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    """As `gangs.rank_main`, with lent memory."""
    lease = Lease("job", plan.epoch, tuple(SlotRef("here", index) for index in range(plan.world)))
    gate = gangs.NotingGate(wants, lease=lease, path=Path(plan.run_dir) / f"reports-{plan.epoch}-{rank}")
    folder = folder_of(Path(plan.run_dir))
    memory = LentRegion(FolderLender(folder), RegionKey("control", plan.epoch, rank))
    run_rank(plan, rank, gate, memory=memory, left_behind=FolderLeft(folder))


def stop_at(edge: Path) -> NoReturn:
    """Stand still here until a test kills this process."""
    edge.mkdir(exist_ok=True)
    (edge / str(os.getpid())).touch()
    while True:
        time.sleep(60)


def wait_at(edge: Path, world: int) -> None:
    """Wait until so many ranks stand there."""
    gangs.wait_until(
        lambda: edge.is_dir() and len(list(edge.iterdir())) == world, what=f"{world} ranks at {edge}", timeout_s=90.0
    )


def at_edge(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    """As `rank_main`, in a gang that can publish nothing from `STEP` on and stands still at an edge of parking there.

    ``plan.args["edge"]`` names it, or one for each rank.
    """
    given = plan.args["edge"]
    name = str(given[rank] if isinstance(given, list) else given)
    publish = CheckpointStore.publish

    def unwritable(self: CheckpointStore, state: Mapping[str, object], ref: Ref) -> None:
        if ref.step >= STEP:
            raise CheckpointFailed("[Errno 30] Read-only file system")
        publish(self, state, ref)

    CheckpointStore.publish = unwritable  # type: ignore[method-assign]
    owner, method = EDGES[name]
    plain = getattr(owner, method)
    edge = Path(plan.run_dir) / "edge"

    def stop(*given: Any, **named: Any) -> Any:
        member = members[0]
        if member.finished != (STEP + 2 if name == "running again" else STEP):
            return plain(*given, **named)
        if name in ("copied", "restored"):
            plain(*given, **named)
        return stop_at(edge)

    members: list[Member] = []
    init = Member.__init__

    def noted(self: Member, *given: Any) -> None:
        init(self, *given)
        members.append(self)

    Member.__init__ = noted  # type: ignore[method-assign,assignment]
    setattr(owner, method, stop)
    rank_main(plan, rank, wants)


STEP = 5
EDGES: Mapping[str, tuple[Any, str]] = {
    "before begin": (Region, "begin"),
    "filling": (host_state_module, "copy_out"),
    "copied": (HostState, "copy"),  # and sealed
    "sealed": (Occupancy, "vacate"),  # on all ranks, as they know
    "freed": (Occupancy, "_trim_and_release"),
    "parked": (park_module, "_wait_parked"),
    "waiting": (park_module, "wait_for_broadcast"),  # of the other ranks
    "restoring": (Evicted, "restore"),
    "restored": (HostState, "put_back"),
    "running again": (session_module, "safe_point"),
}
