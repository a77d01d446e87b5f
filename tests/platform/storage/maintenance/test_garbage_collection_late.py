"""What happens between the collector's look and its deed: nothing that somebody needs by then is lost."""

import errno
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.leases.lease_subjects import of_work
from ebbtide.storage.maintenance.garbage_collection import collect, survey
from ebbtide.storage.maintenance.garbage_plan import Fate, Grace, plan
from ebbtide.storage.names import Attempt, ObjectId
from ebbtide.storage.objects.manifest import Kind
from tests.builders.store import make_old, one_round
from tests.platform.storage.failing_calls import CountedCalls
from tests.platform.storage.stores import (
    KEY,
    NO_GRACE,
    LocalLeases,
    collect_all,
    leftovers,
    model_is_right,
    publish_model,
    store_at,
)


@pytest.mark.proves("an object is made young whose ref is deleted", "an object is made young whose ref is written over")
def test_who_has_just_looked_up_a_ref_has_the_grace_to_open_its_object(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    before, deleted = publish_model(store), publish_model(store, seed=1, tag="other")
    make_old(store, before, deleted)
    old = [store.refs.read("org/model", tag) for tag in ("latest", "other")]
    publish_model(store, seed=2)
    store.refs.delete("org/model", "other")
    assert one_round(store, Grace()) == {}
    for ref in old:
        store.open(ref.object).close()
    make_old(store, before, deleted)
    assert one_round(store, Grace()) == {before[:8]: Fate.TRASH, deleted[:8]: Fate.TRASH}


@pytest.mark.proves("all is looked at again before the first deed")
def test_what_is_published_again_between_look_and_deed_stays(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    lost = publish_model(store, tag=None)
    make_old(store, lost)
    verdicts = plan(survey(store.ports), Grace())
    assert publish_model(store) == lost
    result = collect(store.ports, verdicts, Grace())
    assert result.done == [] and [one.object for one in result.missed] == [lost]
    assert model_is_right(store) and leftovers(store) == []


@pytest.mark.parametrize("how", ["named", "held", "used"])
def test_what_is_needed_between_look_and_deed_stays(tmp_path: Path, how: str) -> None:
    store = store_at(tmp_path / "store")
    lost, other = publish_model(store, tag=None), publish_model(store, seed=1, tag=None)
    verdicts = plan(survey(store.ports), NO_GRACE)
    with ExitStack() as stack:
        if how == "named":
            store.refs.write("org/model", "latest", lost)
        elif how == "held":
            stack.enter_context(store.open(lost))
        else:
            with store.publication(Kind.FLAT, KEY, uses=[lost]) as work:
                work.publish([("flat", "x")])
        result = collect(store.ports, verdicts, NO_GRACE)
        assert [one.object for one in result.done] == [other] and [one.object for one in result.missed] == [lost]
        assert lost in store.list_objects()


@pytest.mark.proves("an object that gets a name is made young")
def test_an_object_that_was_just_named_stays_though_its_name_is_not_seen_yet(tmp_path: Path) -> None:
    """As where a cache hides the ref (NFS, up to 60 s)."""
    store = store_at(tmp_path / "store")
    lost = publish_model(store, tag=None)
    make_old(store, lost)
    store.refs.write("org/model", "latest", lost)
    (store.paths.refs / "org%2Fmodel" / "latest").unlink()
    assert one_round(store, Grace()) == {}


class LastLook(LocalLeases):
    """Something happens at the collector's very last look before it moves something."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0
        self.act: Callable[[], object] = lambda: None

    def present(self) -> frozenset[str]:
        self._looks += 1
        if self._looks == 2:  # the first was for all
            time.sleep(0.05)  # longer than a tick of the filesystem's clock
            self.act()
        return super().present()


@pytest.mark.proves("what is held just before its move stays", "what is published or named just before its move stays")
@pytest.mark.parametrize("how", ["held", "named", "published again"])
def test_what_is_needed_at_the_very_last_look_is_not_even_moved(tmp_path: Path, how: str) -> None:
    leases = LastLook()
    store = store_at(tmp_path / "store", leases=leases)
    lost = publish_model(store, tag=None)
    verdicts = plan(survey(store.ports), NO_GRACE)
    with ExitStack() as stack:
        leases.act = {
            "held": lambda: stack.enter_context(store.open(lost)),
            "named": lambda: store.refs.write("org/model", "latest", lost),
            "published again": lambda: publish_model(store, tag=None),
        }[how]
        result = collect(store.ports, verdicts, NO_GRACE)
    assert result.done == [] and result.failed == [] and [one.object for one in result.missed] == [lost]
    assert store.list_objects() == [lost]


def test_work_that_somebody_goes_on_with_at_the_very_last_look_is_not_taken(tmp_path: Path) -> None:
    leases = LastLook()
    store = store_at(tmp_path / "store", leases=leases)
    (store.paths.incoming / "import").mkdir()
    verdicts = plan(survey(store.ports), NO_GRACE)
    with ExitStack() as stack:
        leases.act = lambda: stack.enter_context(leases.hold(of_work(Attempt("import"))))
        result = collect(store.ports, verdicts, NO_GRACE)
    assert result.done == [] and len(result.missed) == 1
    assert (store.paths.incoming / "import").is_dir()


@pytest.mark.proves(
    "what came to be needed during the moves comes back", "what was named during the moves comes back at once"
)
def test_what_is_published_again_while_it_is_moved_comes_back_in_the_same_round(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    lost = publish_model(store, tag=None)
    verdicts = plan(survey(store.ports), NO_GRACE)
    published = list[ObjectId]()

    def publish(_number: int, name: str) -> None:
        if name == "rename" and not published:
            published.append(lost)
            time.sleep(0.05)  # longer than a tick of the filesystem's clock
            publish_model(store, tag=None)

    collector = store_at(tmp_path / "store", disk=Disk(CountedCalls(publish)))
    result = collect(collector.ports, verdicts, NO_GRACE)
    assert [(one.object, one.fate) for one in result.done] == [(lost, Fate.RESTORE)] and result.failed == []
    assert store.list_objects() == [lost]


@pytest.mark.parametrize("how", ["named", "held", "used"])
def test_what_is_needed_while_it_is_moved_comes_back_in_the_same_round(tmp_path: Path, how: str) -> None:
    """The need turns up after the last look before the move, and just before the move."""
    leases = LocalLeases()
    store = store_at(tmp_path / "store", leases=leases)
    lost = publish_model(store, tag=None)
    flat = ObjectId("")
    if how == "used":
        with store.publication(Kind.FLAT, KEY, uses=[lost]) as work:
            flat = work.publish()
        store.ports.disk.move(store.paths.object(flat), store.paths.root / "aside")
    verdicts = plan(survey(store.ports), NO_GRACE)

    with ExitStack() as stack:

        def need(_number: int, name: str) -> None:
            if name != "rename" or not store.paths.object(lost).exists() or needed:
                return
            needed.append(how)
            if how == "named":
                store.refs.write("org/model", "latest", lost)
            elif how == "held":
                stack.enter_context(store.open(lost))
            else:
                store.ports.disk.move(store.paths.root / "aside", store.paths.object(flat))
                store.refs.write("flat", "x", flat)

        needed: list[str] = []
        collector = store_at(tmp_path / "store", disk=Disk(CountedCalls(need)), leases=leases)
        result = collect(collector.ports, verdicts, NO_GRACE)
        assert needed == [how] and not result.failed
        assert lost in store.list_objects() and list(store.paths.trash.iterdir()) == []
        assert [(one.object, one.fate) for one in result.done] == [(lost, Fate.RESTORE)]
        assert [(one.object, one.fate) for one in result.missed] == [(lost, Fate.TRASH)]


@pytest.mark.proves("what cannot be asked after the moves is put back")
def test_what_cannot_be_asked_after_the_moves_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(tmp_path / "store")
    lost = publish_model(store, tag=None)
    verdicts = plan(survey(store.ports), NO_GRACE)
    real = os.listdir

    def failing(path: Path) -> list[str]:
        if Path(path) == store.paths.refs and not store.paths.object(lost).exists():
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(os, "listdir", failing)
    result = collect(store.ports, verdicts, NO_GRACE)
    assert result.done == [] and [one.object for one, _ in result.failed] == [lost]
    assert store.list_objects() == [lost]


def test_a_store_without_any_room_can_be_collected(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    lost = publish_model(store, tag=None)

    def full(_number: int, name: str) -> None:
        if name in ("create", "write", "mkdir"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    crowded = store_at(tmp_path / "store", disk=Disk(CountedCalls(full)))
    collect_all(crowded)
    assert lost not in store.list_objects() and leftovers(store) == []
