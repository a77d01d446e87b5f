"""One way to the store for each process, and none to what is no store."""

import os
import threading
from pathlib import Path

import pytest

from ebbtide.config.sections.storage_section import StorageSection
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.bandwidth.traffic import Traffic
from ebbtide.storage.errors import NotPublished, TransferTimeout
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.store_limits import leave_limits
from ebbtide_serve.loading.reading import process_store as module
from ebbtide_serve.loading.reading.process_store import process_store
from ebbtide_serve.process import pool_store
from tests.platform.storage.stores import store_at


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_made", {})


def test_a_directory_that_is_no_store_is_not_made_one(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(NotPublished, match="is no store"):
            process_store(root)
    assert list(tmp_path.iterdir()) == []


def test_a_process_has_one_for_each_store_and_a_forked_child_makes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        store_at(tmp_path / name)
    one = process_store(tmp_path / "a")
    assert process_store(tmp_path / "a") is one
    assert process_store(tmp_path / "b").store.paths.root == tmp_path / "b"
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 2**22 + 1)
        assert process_store(tmp_path / "a") is not one
    assert process_store(tmp_path / "a") is one


def test_a_rank_reads_and_writes_as_fast_as_the_pool_may(tmp_path: Path) -> None:
    store_at(tmp_path / "store")
    leave_limits(tmp_path, StorageSection(bytes_per_s_per_node=10**9))
    made = process_store(tmp_path / "store")
    for one, kind in ((made.store, TrafficClass.SERVE_LOAD), (made.background, TrafficClass.PREFETCH)):
        traffic: Traffic = one.ports.transport._traffic  # type: ignore[attr-defined]
        assert (traffic.kind, traffic.rates.budget.bytes_per_s) == (kind, 10**9)


def test_a_store_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_at(tmp_path / "store")
    over = threading.Event()
    monkeypatch.setattr(pool_store, "STORE_ANSWERS_S", 0.3)
    monkeypatch.setattr(ObjectStore, "at", lambda *_, **__: over.wait(20))
    with pytest.raises(TransferTimeout):
        process_store(tmp_path / "store")
    over.set()
