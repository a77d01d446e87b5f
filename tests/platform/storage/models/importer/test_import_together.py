"""Several processes that import one source at once: killed, paused and crowded, they read it once and agree."""

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.models.importer.import_records import flights
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.object_store import ObjectStore
from tests.platform.storage.models.counted_filesystem import tensor_bytes_read
from tests.platform.storage.models.import_process import shared_store
from tests.platform.storage.models.made import Arrays, assert_same, make_checkpoint, stored_arrays
from tests.platform.storage.played import Player
from tests.platform.storage.stores import leftovers

MODULE = "tests.platform.storage.models.import_process"


class Scene:
    """A store, a source whose reads are counted, and the processes."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.root, self.source, self.log = folder / "store", folder / "model", folder / "log"
        self.arrays: Arrays = make_checkpoint(self.source, layers=6)
        self._stack = stack
        self.store: ObjectStore = shared_store(self.root)

    def importer(self, name: str = "org/model", *, pause_s: float = 0.0) -> Player:
        """A process that imports."""
        words = (self.root, f"counted://{self.source}", name, pause_s, self.log)
        return self._stack.enter_context(Player(*words, module=MODULE))

    def tensor_bytes(self) -> int:
        """Of all shards, as they should be read."""
        return sum(array.nbytes for array in self.arrays.values())

    def read_bytes(self) -> int:
        """Of all shards, as they were read, in all processes."""
        return sum(tensor_bytes_read(self.log, self.source).values())

    def check(self, results: list[dict[str, Any]]) -> None:
        """All have the same right object."""
        assert {one["event"] for one in results} == {"has"}, results
        (target,) = {one["object"] for one in results}
        assert_same(stored_arrays(self.store, ObjectId(target)), self.arrays)
        assert self.store.list_objects() == [target]
        for one in results:
            assert self.store.refs.read(one["ref"].rpartition(":")[0], "latest").object == target


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


def result(player: Player) -> dict[str, Any]:
    found = player.wait_for("has", "error")
    player.end()
    return found


def copying(player: Player, least: int) -> None:
    """Wait until it has copied so much."""
    deadline = time.monotonic() + 120
    while not any(one["event"] == "COPYING" and one["done"] >= least for one in list(player.said)):
        assert time.monotonic() < deadline, player.said[-3:]
        time.sleep(0.01)


def test_five_at_once_read_the_source_once_and_all_have_it(scene: Scene) -> None:
    importers = [scene.importer(f"name{number}", pause_s=0.02) for number in range(5)]
    results = [result(one) for one in importers]
    scene.check(results)
    assert scene.read_bytes() == scene.tensor_bytes()
    assert sorted(one["how"] for one in results).count("copied") == 1
    assert sum(one["copied"] for one in results) == results[0]["total"]
    assert not [path for path in leftovers(scene.store) if "leases" not in path.parts]


def test_who_waits_sees_how_far_the_leader_is(scene: Scene) -> None:
    leader = scene.importer(pause_s=0.2)
    copying(leader, 1)
    waiter = scene.importer()
    results = [result(leader), result(waiter)]
    scene.check(results)
    assert [one["how"] for one in results] == ["copied", "shared"]
    seen = [one for one in waiter.said if one["event"] == "WAITING" and one["total"]]
    assert seen and all(one["total"] == results[0]["total"] for one in seen)
    assert [one["done"] for one in seen] == sorted(one["done"] for one in seen)
    assert any(0 < one["done"] < one["total"] for one in seen) and any("copying" in one["why"] for one in seen)


@pytest.mark.parametrize("round_", range(3))
def test_a_leader_that_is_killed_is_succeeded_by_one_that_goes_on(scene: Scene, round_: int) -> None:
    leader = scene.importer(pause_s=0.05)
    copying(leader, random.Random(round_).randrange(200_000, 600_000))
    waiters = [scene.importer(f"waiter{number}", pause_s=0.01) for number in range(2)]
    leader.kill()
    before = scene.read_bytes()
    results = [result(one) for one in waiters]
    scene.check(results)
    (copied,) = [one for one in results if one["how"] == "copied"]
    assert copied["saved"] > 150_000 and copied["saved"] + copied["copied"] == copied["total"]
    assert scene.read_bytes() - before <= copied["copied"] + 5000, "what was there was not read again"
    assert scene.read_bytes() < scene.tensor_bytes() + 5 * (64 << 10), "at most what was under way was read twice"


def test_a_leader_that_is_paused_is_succeeded_and_does_no_harm_when_it_wakes_up(scene: Scene) -> None:
    leader = scene.importer(pause_s=0.05)
    copying(leader, 300_000)
    leader.stop()
    second = scene.importer("second", pause_s=0.05)
    copying(second, 500_000)  # it goes on, beside the paused one
    leader.go_on()
    results = [result(second), result(leader)]
    scene.check(results)
    assert results[0]["how"] == "copied" and results[0]["saved"] > 0
    assert results[1]["how"] == "shared"
    assert [path for path in scene.store.paths.quarantine.iterdir()] == []


def test_a_leader_that_wakes_up_after_all_is_done_takes_what_is_there(scene: Scene) -> None:
    leader = scene.importer(pause_s=0.05)
    copying(leader, 300_000)
    leader.stop()
    second = result(scene.importer("second"))
    leader.go_on()
    scene.check([second, result(leader)])


def test_everybody_killed_again_and_again_gets_there_in_the_end(scene: Scene) -> None:
    """Each is killed at a random moment; what one has copied the next need not."""
    chance = random.Random(7)
    for _ in range(4):
        importer = scene.importer(pause_s=0.01)
        importer.wait_for("asks")
        time.sleep(chance.random() * 1.5)
        importer.kill()
        shutil.rmtree(flights(scene.store.paths), ignore_errors=True)  # as if a minute had passed
    last = result(scene.importer())
    scene.check([last])


def test_all_are_told_why_it_cannot_be(scene: Scene) -> None:
    leader = scene.importer(pause_s=0.3)
    copying(leader, 1)
    waiter = scene.importer("waiter")
    waiter.wait_for("WAITING")
    (scene.source / "config.json").write_text("{}")
    errors = [result(leader), result(waiter)]
    assert {one["event"] for one in errors} == {"error"} and all("changed while" in one["text"] for one in errors)
    assert {one["kind"] for one in errors} <= {"Refused", "SourceChanged"}
    assert scene.store.list_objects() == [] and scene.store.refs.names() == []
