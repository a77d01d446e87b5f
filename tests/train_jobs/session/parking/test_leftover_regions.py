"""Which of what gangs have left is worth having, and what a start does until it is published; without processes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ebbtide.snapshot.eviction.tensor_eviction import plan
from ebbtide.snapshot.regions.region_states import RegionKey, RegionState
from ebbtide.snapshot.regions.region_view import RegionView
from ebbtide.storage.checkpoints.run_directory.lineage import Claim, EpochFound, Start
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.errors import CheckpointMismatch
from ebbtide_train.session.parking import takeover as rescue_module
from ebbtide_train.session.parking.host_checkpoint import Owner, Portable
from ebbtide_train.session.parking.leftover_regions import Left, Outcome, Taken, over, worth_having
from ebbtide_train.session.parking.takeover import settle, take_over
from ebbtide_train.session.step_log import GangLine, note_gang
from tests.builders.training import Nodes
from tests.train_jobs import gangs


def note(*, step: int = 5, epoch: int = 9, lease_epoch: int = 7, ledger: str = "ledger", job: str = "control") -> bytes:
    ref = Ref(step=step, epoch=epoch, world=1, seed=0, global_batch=6, dataset_len=97)
    portable = Portable({"a": torch.zeros(1)}, Owner(job, ledger, lease_epoch), ref)
    return portable.put(plan([]), torch.empty(4096, dtype=torch.uint8))[1]


def region(rank: int = 0, lease_epoch: int = 7, **more: object) -> RegionView:
    given = RegionView(
        path=Path(f"{lease_epoch}.{rank}"),
        key=RegionKey("control", lease_epoch, rank),
        state=RegionState.FULL,
        size_bytes=4096,
        note=note(),
        borrower_lives=False,
        hashed=True,
    )
    return replace(given, **more)  # type: ignore[arg-type]


FOUND = [
    EpochFound(8, frozenset({2}), Start(None, Claim("ledger", 6))),
    EpochFound(9, frozenset({4}), Start(CheckpointId(8, 2), Claim("ledger", 7))),
]


def test_a_whole_state_of_the_last_gang_that_is_further_than_any_checkpoint_is_worth_having() -> None:
    best = worth_having([Left("a", region()), Left("b", region(rank=1, note=b'{"rank": 1}'))], "control", FOUND)
    assert best is not None and (best[0].node, best[1].ref.step) == ("a", 5)


def test_of_several_the_one_that_is_furthest() -> None:
    left = [Left("a", region(note=note(step=step))) for step in (5, 8, 6)]
    best = worth_having(left, "control", FOUND)
    assert best is not None and best[1].ref.step == 8


@pytest.mark.parametrize(
    "left",
    [
        region(state=RegionState.FILLING),
        region(state=RegionState.EMPTY),
        region(note=None),
        region(note=b"\x00"),
        region(borrower_lives=True),
        region(key=RegionKey("other", 7, 0)),
        region(note=note(step=4)),
        region(note=note(step=3)),
        region(note=note(epoch=8)),
        region(note=note(epoch=10)),
        region(note=note(lease_epoch=6)),
        region(note=note(ledger="of before")),
        region(note=note(job="other")),
    ],
)
def test_anything_else_is_not(left: RegionView) -> None:
    assert worth_having([Left("a", left)], "control", FOUND) is None


def test_what_a_later_gang_or_a_person_has_overruled_is_not() -> None:
    """`ebbtide checkpoints use` is an epoch above."""
    decided = [*FOUND, EpochFound(10, frozenset(), Start(CheckpointId(8, 2), Claim("ledger", 8)))]
    assert worth_having([Left("a", region())], "control", decided) is None
    assert worth_having([Left("a", region())], "control", []) is None, "its run is gone"


def test_a_gang_is_over_on_a_node_when_none_of_its_processes_lives_there() -> None:
    left = [
        Left("a", region()),
        Left("a", region(rank=1, borrower_lives=True)),
        Left("b", region(rank=2)),
        Left("b", region(lease_epoch=6)),
        Left("b", region(key=RegionKey("other", 3, 0))),
    ]
    assert over(left, "control") == {("b", 7), ("b", 6)}


LATER, USELESS, PUBLISHED = (
    Taken(Outcome.LATER, "no space left"),
    Taken(Outcome.USELESS, "hash"),
    Taken(Outcome.PUBLISHED),
)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a job whose last gang, of epoch 7, was on nodes "a" and "b"."""
    monkeypatch.setattr(rescue_module, "_AGAIN_S", 0.001)
    monkeypatch.setattr(rescue_module, "ANSWER_S", 0.05)
    store = CheckpointStore(tmp_path)
    store.begin(7)
    store.close()
    note_gang(tmp_path, GangLine(7, 2, 0, 0, 0.0, ("a", "b")))
    return tmp_path


def found_by(run_dir: Path, nodes: Nodes, *, patience_s: float = 10.0) -> tuple[int, list[str]]:
    told: list[str] = []
    settings = replace(gangs.plan_of(run_dir, world=1, epoch=8).settings(0), last_commit_s=patience_s)
    return take_over(settings, nodes, told.append), told


MINE = region(note=note(epoch=7, ledger=""))


def test_what_cannot_be_published_now_is_tried_again_and_told(run_dir: Path) -> None:
    assert found_by(run_dir, Nodes({"a": [], "b": [MINE]}, LATER, LATER, PUBLISHED)) == (5, ["no space left"] * 2)


def test_a_gang_rather_ends_than_goes_on_from_further_back_while_it_could_go_on_from_there(run_dir: Path) -> None:
    with pytest.raises(CheckpointMismatch, match=r"step 5 of the last one lies in the memory of node b.*no space left"):
        found_by(run_dir, Nodes({"b": [MINE]}, *[LATER] * 99), patience_s=0.0)


def test_what_turns_out_to_be_useless_is_left_alone(run_dir: Path) -> None:
    assert found_by(run_dir, Nodes({"a": [], "b": [MINE]}, USELESS)) == (0, [])


def test_a_node_that_dies_meanwhile_takes_it_along(run_dir: Path) -> None:
    nodes = Nodes({"b": [MINE]})

    def dies(left: Left, run_dir: Path, *, keep: int) -> Taken:
        nodes.left["b"] = ()
        return LATER

    nodes.publish = dies  # type: ignore[method-assign]
    assert found_by(run_dir, nodes) == (0, ["no space left"])


def test_a_node_that_stays_silent_holds_nobody_up_for_long(run_dir: Path) -> None:
    assert found_by(run_dir, Nodes({"a": None, "b": [MINE]}, PUBLISHED)) == (5, [])


def test_a_killed_agent_is_waited_for(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescue_module, "ANSWER_S", 10.0)
    nodes, looks = Nodes({"b": [MINE]}, PUBLISHED), [0]

    def back_again(node: str) -> Sequence[Left] | None:
        looks[0] += 1
        return None if looks[0] < 4 else [Left(node, MINE)]

    nodes.look = back_again  # type: ignore[method-assign]
    assert found_by(run_dir, nodes) == (5, [])


def test_everything_of_gangs_that_are_over_is_given_back(run_dir: Path) -> None:
    alive = replace(MINE, borrower_lives=True)
    nodes = Nodes({"a": [alive], "b": [MINE, region(rank=1, lease_epoch=6)]})
    settle(gangs.plan_of(run_dir, world=1, epoch=8).settings(0), nodes)
    assert nodes.settled == [("b", 6), ("b", 7)]
    nodes.left["a"] = None  # it does not answer now: the next gang says it again
    settle(gangs.plan_of(run_dir, world=1, epoch=8).settings(0), nodes)
    assert nodes.settled[2:] == [("b", 6), ("b", 7)]


def test_gang_lines_of_before_have_no_nodes(tmp_path: Path) -> None:
    """They were written by a version that did not say."""
    from ebbtide_train.session.step_log import gang_lines, last_nodes

    record = {"lease_epoch": 3, "world": 1, "restored": 0, "lost_steps": 0, "t": 0.0}
    (tmp_path / "gangs.jsonl").write_text(json.dumps(record) + "\n")
    assert gang_lines(tmp_path) == [GangLine(3, 1, 0, 0, 0.0)]
    assert last_nodes(tmp_path, also="here") == ["here"]
    for epoch, nodes in ((4, ("a", "b")), (5, ("b", "c"))):
        note_gang(tmp_path, GangLine(epoch, 2, 0, 0, 0.0, nodes))
    assert last_nodes(tmp_path, also="here") == ["b", "c", "a", "here"]
