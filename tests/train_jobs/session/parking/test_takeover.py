"""A gang of which every process is killed while it is parked, or on its way there or back, loses no step it need not.

Nothing is published meanwhile: the shared directory refuses. What the next gang goes on from lies in host memory.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from ebbtide.client.messages import DesiredState
from ebbtide.snapshot.regions.header import HEADER_BYTES
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.region_states import RegionState
from ebbtide.snapshot.regions.region_view import look
from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.session.parking.host_checkpoint import read_note
from ebbtide_train.session.step_log import gang_lines, step_lines
from ebbtide_train.verification.control_run import GangPlan
from ebbtide_train.verification.step_log_comparison import compare
from tests.builders.training import once_durable
from tests.train_jobs import gangs, lent

pytestmark = pytest.mark.timeout(200)
DURABLE, STEP = 2, lent.STEP
AGAIN = {DURABLE: Away(until=once_durable), STEP: Away(polls=1)}

# Where each rank is killed, and after which step the next gang goes on.
EXPECTED: dict[tuple[str, ...], int] = {
    ("before begin",): DURABLE,
    ("filling",): DURABLE,
    ("filling", "copied"): DURABLE,  # what counts for the gang is what its first rank has
    ("copied", "filling"): STEP,
    ("sealed",): STEP,
    ("freed",): STEP,
    ("parked",): STEP,
    ("parked", "waiting"): STEP,
    ("restoring",): STEP,
    ("restored", "restoring"): STEP,
    ("restored",): STEP,
    ("running again",): STEP,
}


def plan_of(run_dir: Path, *edges: str, epoch: int = 1) -> GangPlan:
    world = len(edges)
    return gangs.plan_of(run_dir, world=world, epoch=epoch, steps=8, dropout=0.1, edge=list(edges))


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The undisturbed runs that all others must equal, by their number of workers."""
    found = {world: tmp_path_factory.mktemp("calm") / str(world) for world in (1, 2)}
    for world, path in found.items():
        gangs.run(gangs.plan_of(path, world=world, steps=8, dropout=0.1))
    return found


@contextmanager
def standing(*plans: GangPlan) -> Iterator[list[BaseProcess]]:
    """Gangs that stand at their edges; whatever is left of them is killed."""
    ranks: list[BaseProcess] = []
    try:
        for plan in plans:
            ranks += gangs.start(plan, AGAIN, lent.at_edge)
        for plan in plans:
            lent.wait_at(Path(plan.run_dir) / "edge", plan.world)
        yield ranks
    finally:
        gangs.kill(ranks)


def goes_on(*plans: GangPlan) -> None:
    """The next gangs of these jobs, to their end."""
    ranks: list[BaseProcess] = []
    for plan in plans:
        ranks += gangs.start(gangs.stopping(plan, epoch=50), {}, lent.rank_main)
    gangs.join(ranks)


def must_equal(run_dir: Path, calm: Path, world: int) -> None:
    found = compare(step_lines(run_dir), step_lines(calm))
    assert (found.steps, found.losses_identical, found.samples_identical) == (8, True, True), found
    assert gangs.digests(run_dir, world) == gangs.digests(calm, world)


def regions(plan: GangPlan) -> list[RegionState]:
    return [one.region.state for one in lent.FolderLeft(lent.folder_of(Path(plan.run_dir))).look("") or ()]


def test_killed_at_any_edge_of_parking_it_goes_on_from_the_step_that_counts(
    tmp_path: Path, calm: dict[int, Path], record_property: Callable[[str, object], None]
) -> None:
    plans = [plan_of(tmp_path / "+".join(edges).replace(" ", "-"), *edges) for edges in EXPECTED]
    with standing(*plans):
        pass
    goes_on(*plans)
    table, wrong = [f"{'killed when the first rank was, and the second':50} {'went on after':>14} {'lost':>5}"], []
    for plan, (edges, expected) in zip(plans, EXPECTED.items(), strict=True):
        run_dir = Path(plan.run_dir)
        line = gang_lines(run_dir)[-1]
        table.append(f"{', '.join(edges):50} {'step ' + str(line.restored):>14} {line.lost_steps:>5}")
        finished = STEP + 2 if edges == ("running again",) else STEP
        wanted = (expected, finished - expected, expected if expected == STEP else 0)
        if (line.restored, line.lost_steps, line.rescued) != wanted:
            wrong.append(table[-1])
        must_equal(run_dir, calm[plan.world], plan.world)
        assert regions(plan) == [RegionState.EMPTY] * plan.world, "only those of the gang that has just ended"
    record_property("table", "\n".join(table))
    assert not wrong, "\n".join(wrong)


def test_a_gang_that_stands_still_is_not_robbed(tmp_path: Path, calm: dict[int, Path]) -> None:
    """Its lock says that it lives; and when it goes on, it hears that it was replaced."""
    plan = plan_of(tmp_path / "job", "parked")
    with standing(plan) as ranks:
        os.kill(ranks[0].pid or 0, signal.SIGSTOP)
        goes_on(plan)
        assert gang_lines(tmp_path / "job")[-1].restored == DURABLE
        assert RegionState.FULL in regions(plan)
    must_equal(tmp_path / "job", calm[1], 1)


@pytest.mark.parametrize("at", [100, -100])
def test_damaged_memory_is_never_used(tmp_path: Path, calm: dict[int, Path], at: int) -> None:
    """A bit flips in a tensor, or in the description of the tensors; the hashes tell."""
    plan = plan_of(tmp_path / "job", "parked")
    with standing(plan):
        [path] = lent.folder_of(tmp_path / "job").iterdir()
        gangs.wait_until(lambda: look(path).hashed, what="its hashes")
    with path.open("r+b") as file:
        body_end = read_note(look(path).note or b"").body_at + HEADER_BYTES + 200
        file.seek(HEADER_BYTES + at if at > 0 else body_end + at)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    goes_on(plan)
    line = gang_lines(tmp_path / "job")[-1]
    assert (line.restored, line.rescued, line.lost_steps) == (DURABLE, 0, STEP - DURABLE)
    must_equal(tmp_path / "job", calm[1], 1)


def _one_cannot_copy(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    if rank == 1:
        Region.seal = full  # type: ignore[method-assign,assignment]
    lent.rank_main(plan, rank, wants)


def test_if_one_rank_cannot_copy_all_run_on_in_place_and_say_why(tmp_path: Path, calm: dict[int, Path]) -> None:
    """Nothing was freed, on any rank."""
    plan = gangs.plan_of(tmp_path / "job", world=2, steps=8, dropout=0.1)
    gangs.run(plan, {STEP: Away(), 7: DesiredState.RUN}, _one_cannot_copy)
    must_equal(tmp_path / "job", calm[2], 2)
    for rank in (0, 1):
        said = "\n".join(gangs.reports(plan, rank))
        assert "parked" not in said
        assert "refused=rank 1: [Errno 28] No space left on device" in said
    assert regions(plan) == [RegionState.EMPTY] * 2
