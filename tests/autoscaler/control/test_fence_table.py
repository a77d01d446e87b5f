"""Which fences count, and which are removed."""

from ebbtide.pool.ids import NodeId, SlotId
from ebbtide_autoscaler.control import fence_placement_groups
from ebbtide_autoscaler.control.fence_table import Fence, FenceTable, fallen, prefix, stands, strays
from ebbtide_autoscaler.core.observe.observation import FenceView

A, B = NodeId("aaaaaaaa11"), NodeId("bbbbbbbb22")
A0, A1, B0 = SlotId(f"{A}:0"), SlotId(f"{A}:1"), SlotId(f"{B}:0")


def fence(name: str, state: str = "CREATED", node: str = "") -> dict[str, Fence]:
    return {name: Fence(name, state, node)}


def test_only_a_fence_that_stands_on_its_own_node_keeps_strangers_off() -> None:
    assert stands(Fence("f", "CREATED", str(A)), A0)
    assert not stands(Fence("f", "CREATED", str(B)), A0), "Ray moved it"
    assert not stands(Fence("f", "RESCHEDULING", ""), A0)
    assert not stands(Fence("f", "PENDING", ""), A0)
    assert not stands(None, A0)


def test_fences_that_fell_are_told_from_those_that_stand() -> None:
    table = {**fence("f0", node=str(A)), **fence("f1", "RESCHEDULING"), **fence("f2", node=str(A))}
    assert fallen({A0: "f0", A1: "f1", B0: "f2"}, table) == {A1: "f1", B0: "f2"}
    assert fallen({A0: "never-made"}, table) == {A0: "never-made"}


def test_a_stray_is_removed_unless_one_is_being_asked_for_on_its_node() -> None:
    mine, other = f"{prefix('p')}{A[:8]}:1", f"{prefix('p')}{B[:8]}:2"
    table = {**fence(mine), **fence(other), **fence("known")}
    assert set(strays({A0: "known"}, table, ())) == {mine, other}
    assert strays({A0: "known"}, table, (A,)) == [other]
    assert strays({A0: mine, B0: other}, {**fence(mine), **fence(other)}, ()) == []


def test_names_carry_pool_and_node_and_no_pool_reads_anothers(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    entries = {
        str(number): {"name": name, "state": state, "bundles_to_node_id": {0: "n"}}
        for number, (name, state) in enumerate(
            [
                (f"{prefix('p')}{A[:8]}:1", "CREATED"),
                (f"{prefix('p')}{A[:8]}:2", "REMOVED"),
                (f"{prefix('p-2')}{A[:8]}:1", "CREATED"),
                ("fence-of-somebody", "CREATED"),
                ("", "PENDING"),
            ]
        )
    }
    monkeypatch.setattr(fence_placement_groups, "placement_group_table", lambda: entries)
    assert list(fence_placement_groups.table("p")) == [f"{prefix('p')}{A[:8]}:1"]
    assert list(fence_placement_groups.table("p-2")) == [f"{prefix('p-2')}{A[:8]}:1"]
    assert fence_placement_groups.table("p")[f"{prefix('p')}{A[:8]}:1"].node_prefix == A[:8]


def test_nothing_of_a_dead_node_is_kept() -> None:
    book = FenceTable({A0: "f0", B0: "f1"})
    book.refused(A1, 100.0, "a stranger")
    book.refused(SlotId(f"{B}:1"), 100.0, "another")
    assert book.forget_nodes(frozenset({B})) == [(A0, "f0")]
    assert book.refused_until_s == {SlotId(f"{B}:1"): 100.0} and list(book.strangers) == [SlotId(f"{B}:1")]


def test_a_refused_slot_is_asked_for_again_after_a_while_and_its_stranger_forgotten_when_it_is_had() -> None:
    book = FenceTable()
    book.refused(A0, 100.0, "ray::stranger (pid 7)")
    assert book.views([A0, A1], 99.0) == {A0: FenceView.REFUSED, A1: FenceView.ABSENT}
    assert book.views([A0], 101.0) == {A0: FenceView.ABSENT}
    assert book.strangers == {A0: "ray::stranger (pid 7)"}
    book.held(A0, "f0")
    assert book.views([A0], 99.0) == {A0: FenceView.HELD} and book.strangers == {}
