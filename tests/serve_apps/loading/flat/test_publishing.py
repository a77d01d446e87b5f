"""All ranks or none, one set in the whole cluster, and memory given back whatever happens."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.coordination.single_flight import file_name
from ebbtide.storage.errors import Superseded, TransferFailed
from ebbtide.storage.leases.lease_holder import claim
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.store_limits import Budget
from ebbtide_serve.loading.flat import capture_state as held_module
from ebbtide_serve.loading.flat.publishing import FLIGHTS, Outcome, _together, _Work, publish_flat
from ebbtide_serve.loading.reading.process_store import ProcessStore
from tests.builders.rank_load import Rank, call_to
from tests.platform.storage.stores import leftovers, overwrite, within
from tests.serve_apps.loading.small_model import publish_small, reach

TP = 2


@pytest.fixture
def store(tmp_path: Path) -> ProcessStore:
    return reach(tmp_path / "store")


@pytest.fixture
def ranks(store: ProcessStore) -> list[Rank]:
    wanted = publish_small(store.store)
    return [Rank(store, wanted, TP, rank).load() for rank in range(TP)]


def phases(ranks: list[Rank]) -> list[object]:
    return [one.held.state()["phase"] for one in ranks]


def nothing_is_left(store: ProcessStore, ranks: list[Rank]) -> bool:
    return phases(ranks) == ["none"] * TP and not leftovers(store.store) and store.store.refs.list("flat/") == []


def test_a_flat_form_has_a_tag_for_every_rank(store: ProcessStore, ranks: list[Rank]) -> None:
    found = publish_flat(store.store, call_to(ranks))
    assert {ref.object for ref in store.store.refs.list("flat/")} == {found.object}
    assert sorted(ref.tag[:9] for ref in store.store.refs.list("flat/")) == ["tp2-rank0", "tp2-rank1"]
    assert phases(ranks) == ["none"] * TP
    assert all(one.held._capture is None for one in ranks)


def test_a_flat_form_names_the_model_that_it_is_of_so_that_this_is_not_collected(
    store: ProcessStore, ranks: list[Rank]
) -> None:
    found = publish_flat(store.store, call_to(ranks)).object
    assert found is not None
    assert list(store.store.manifest(found).uses) == [ranks[0].wanted]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda states: states[1].update(phase="none", why="no room"), "rank 1 holds nothing: no room"),
        (lambda states: states.pop(), r"ranks \[0\] are there, and 2 are needed"),
        (lambda states: states[1].update(rank=0), r"ranks \[0, 0\]"),
        (lambda states: states[1].update(key={"model": "other"}), "parts of different models"),
    ],
)
def test_ranks_that_are_not_a_whole_publish_nothing(
    store: ProcessStore, ranks: list[Rank], spoil: Callable[[list[dict[str, object]]], object], told: str
) -> None:
    real = call_to(ranks)

    def call(method: str, *args: Any) -> list[Any]:
        answer = real(method, *args)
        if method == "ebbtide_flat_state":
            spoil(answer)
        return answer

    outcome = publish_flat(store.store, call)
    assert outcome.object is None
    assert re.search(told, outcome.why)
    assert nothing_is_left(store, ranks)


def test_a_rank_that_cannot_write_lets_nothing_be_published(
    store: ProcessStore, ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = held_module.stage  # type: ignore[attr-defined]

    def stage(capture: Any, *args: Any) -> Any:
        if capture.rank == 1:
            raise TransferFailed("write", Path("f"), errno=5)
        return real(capture, *args)

    monkeypatch.setattr(held_module, "stage", stage)
    outcome = publish_flat(store.store, call_to(ranks), sleep=lambda seconds: None)
    assert outcome.object is None
    assert "rank 1 did not write its file: cannot write f" in outcome.why
    deadline_s = time.monotonic() + 10.0  # the other rank may be in the midst of its file
    while not nothing_is_left(store, ranks) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert nothing_is_left(store, ranks)


def test_a_rank_that_never_ends_is_given_up(
    store: ProcessStore, ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(held_module, "stage", lambda *_: hangs.wait(30))
    now = iter(range(10_000))
    outcome = publish_flat(
        store.store, call_to(ranks), sleep=lambda seconds: None, clock_s=lambda: next(now), patience_s=5
    )
    assert "did not write their files within 5 s" in outcome.why
    assert nothing_is_left(store, ranks)
    hangs.set()


def test_while_somebody_else_makes_it_nothing_is_written_and_the_memory_is_free(
    store: ProcessStore, ranks: list[Rank]
) -> None:
    key = str(ranks[0].held.state()["ref_name"])
    other = claim(store.store.paths.root / FLIGHTS, file_name(key), 1, who="another replica")
    assert other is not None
    with other:
        outcome = publish_flat(store.store, call_to(ranks), others_s=0.0)
    assert outcome.object is None
    assert "another replica" in outcome.why
    assert nothing_is_left(store, ranks)


def test_of_many_replicas_one_publishes(store: ProcessStore) -> None:
    wanted = publish_small(store.store)
    replicas = [[Rank(store, wanted, TP, rank).load() for rank in range(TP)] for _ in range(3)]
    staged: list[str] = []

    def counting(ranks: list[Rank]) -> Callable[..., list[Any]]:
        real = call_to(ranks)

        def call(method: str, *args: Any) -> list[Any]:
            if method == "ebbtide_flat_stage":
                staged.append(args[0])
            return real(method, *args)

        return call

    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(target=lambda ranks=ranks: outcomes.append(publish_flat(store.store, counting(ranks))))
        for ranks in replicas
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(staged) == 1
    assert {outcome.object for outcome in outcomes} == {store.store.refs.list("flat/")[0].object}
    assert all(phases(ranks) == ["none"] * TP for ranks in replicas)


def test_no_room_is_a_reason(store: ProcessStore, ranks: list[Rank]) -> None:
    outcome = publish_flat(within(store.store, Budget(max_bytes=1000)), call_to(ranks))
    assert "no room for" in outcome.why
    assert nothing_is_left(store, ranks)


def test_what_was_published_meanwhile_is_found_and_not_written_again(store: ProcessStore, ranks: list[Rank]) -> None:
    wanted = ranks[0].wanted
    late = [Rank(store, wanted, TP, rank).load() for rank in range(TP)]
    found = publish_flat(store.store, call_to(ranks))
    real, calls = call_to(late), []

    def call(method: str, *args: Any) -> list[Any]:
        calls.append(method)
        return real(method, *args)

    assert publish_flat(store.store, call) == found
    assert "ebbtide_flat_stage" not in calls
    assert isinstance(found.object, str)
    assert ObjectId(found.object) in store.store.list_objects()


def damage(store: ProcessStore, found: ObjectId | None, rank: int, *, offset: int = 9000) -> None:
    assert found is not None
    overwrite(store.store.paths.object(found) / f"tp{TP}/rank{rank}.safetensors", offset, b"\x7f\x7f")


def starts(store: ProcessStore, wanted: ObjectId) -> list[Rank]:
    return [Rank(store, wanted, TP, rank).load() for rank in range(TP)]


def set_aside(store: ProcessStore) -> int:
    return len(list(store.store.paths.quarantine.iterdir()))


def test_what_another_replica_has_repaired_is_not_set_aside_again(store: ProcessStore, ranks: list[Rank]) -> None:
    """The repaired form has the id of the damaged one: its content is the same."""
    found = publish_flat(store.store, call_to(ranks))
    for rank in range(TP):
        damage(store, found.object, rank)
    replicas = [starts(store, ranks[0].wanted) for _ in range(3)]
    staged: list[object] = []
    for replica in replicas:
        real = call_to(replica)

        def call(method: str, *args: Any, real: Callable[..., list[Any]] = real) -> list[Any]:
            staged.extend(args if method == "ebbtide_flat_stage" else ())
            return real(method, *args)

        assert publish_flat(store.store, call) == found
        assert phases(replica) == ["none"] * TP
    assert (len(staged), set_aside(store)) == (1, 1)
    assert [one.record.used for one in starts(store, ranks[0].wanted)] == ["ebbtide_flat"] * TP


def test_one_damaged_rank_has_the_flat_form_made_anew_by_the_next_start(store: ProcessStore, ranks: list[Rank]) -> None:
    """The others have loaded theirs, and hold nothing that could be published."""
    found = publish_flat(store.store, call_to(ranks))
    damage(store, found.object, 1)
    second = starts(store, ranks[0].wanted)
    assert [one.record.used for one in second] == ["ebbtide_flat", "ebbtide"]
    outcome = publish_flat(store.store, call_to(second))
    assert outcome.object is None
    assert "rank 0 holds nothing" in outcome.why
    assert set_aside(store) == 1
    third = starts(store, ranks[0].wanted)
    assert publish_flat(store.store, call_to(third)) == found
    assert [one.record.used for one in starts(store, ranks[0].wanted)] == ["ebbtide_flat"] * TP


def test_one_that_cannot_even_be_opened_is_made_anew(store: ProcessStore, ranks: list[Rank]) -> None:
    found = publish_flat(store.store, call_to(ranks))
    assert found.object is not None
    (store.store.paths.object(found.object) / f"tp{TP}/rank0.safetensors").unlink()
    second = starts(store, ranks[0].wanted)
    assert publish_flat(store.store, call_to(second)) == found
    assert [one.record.used for one in starts(store, ranks[0].wanted)] == ["ebbtide_flat"] * TP


class Overtaken:
    """What a leader has whose work another process has taken over, from the moment on at which it learns that."""

    attempt = 1

    def __init__(self, learns: str) -> None:
        self._learns = learns

    def check(self) -> None:
        if self._learns == "check":
            raise Superseded("another process took over")

    def confirm(self) -> None:
        raise Superseded("another process took over")

    def report(self, *_: object) -> None: ...


@pytest.mark.parametrize("learns", ["check", "confirm"])
def test_whoever_was_overtaken_publishes_nothing_and_sets_nothing_aside(
    store: ProcessStore, ranks: list[Rank], learns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = publish_flat(store.store, call_to(ranks))
    for rank in range(TP):
        damage(store, found.object, rank)
    second, hangs = starts(store, ranks[0].wanted), threading.Event()
    before = store.store.refs.list()
    if learns == "check":
        monkeypatch.setattr(held_module, "stage", lambda *_: hangs.wait(30))
    leader: Any = Overtaken(learns)
    work = _Work(store.store, call_to(second), lambda _: time.sleep(0.01), time.monotonic, 20.0)
    with pytest.raises(Superseded):
        work.lead(leader, _together([one.held.state() for one in second]))
    assert (set_aside(store), store.store.refs.list()) == (0, before)
    assert not leftovers(store.store)
    hangs.set()


@pytest.mark.parametrize("late", ["ebbtide_flat_state", "ebbtide_flat_stage", "ebbtide_flat_drop"])
def test_the_memory_is_given_back_when_a_call_does_not_come_back_in_time(
    store: ProcessStore, ranks: list[Rank], late: str
) -> None:
    real, missed = call_to(ranks), list[str]()

    def call(method: str, *args: Any) -> list[Any]:
        if method == late and not missed:
            missed.append(method)
            raise TimeoutError
        return real(method, *args)

    if late == "ebbtide_flat_drop":
        assert publish_flat(store.store, call, sleep=lambda seconds: None).object is not None
    else:
        with pytest.raises(TimeoutError):
            publish_flat(store.store, call, sleep=lambda seconds: None)
    assert phases(ranks) == ["none"] * TP
    assert all(one.held._capture is None for one in ranks)


def test_an_engine_that_never_answers_again_ends_the_tries(store: ProcessStore, ranks: list[Rank]) -> None:
    def call(method: str, *args: Any) -> list[Any]:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        publish_flat(store.store, call, sleep=lambda seconds: None)
