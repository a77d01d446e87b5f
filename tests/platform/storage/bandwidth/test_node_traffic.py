"""One book for all processes of a node that use one filesystem, and no transfer of ours past it."""

import ast
import os
from functools import cache
from pathlib import Path

import pytest

from ebbtide.config.sections.storage_section import StorageSection
from ebbtide.storage.bandwidth import node_traffic as node
from ebbtide.storage.bandwidth.node_traffic import book_of, node_traffic
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.bandwidth.traffic import Traffic
from ebbtide.storage.objects.store_limits import leave_limits
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore

ROOT = Path(__file__).parents[4]
# `ebbtide doctor` and a rehearsal measure what the filesystem can do when nobody holds back.
MEASURES = {"platform/ebbtide/cli/commands/doctor.py", "platform/ebbtide/diagnostics/probe/rehearsal.py"}


@cache
def calls() -> tuple[tuple[str, str, ast.Call], ...]:
    """All calls in our sources of something by its bare name: where, and of what."""
    paths = [path for top in ("platform", "serve_apps", "train_jobs") for path in (ROOT / top).rglob("*.py")]
    return tuple(
        (f"{path.relative_to(ROOT)}:{call.lineno}", call.func.id, call)
        for path in sorted(paths)
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    )


@pytest.mark.parametrize("maker", ["PosixTransport", "GdsTransport", "device_transport"])
def test_every_transport_of_ours_is_made_for_a_class(maker: str) -> None:
    made = [(where, {one.arg for one in call.keywords}) for where, name, call in calls() if name == maker]
    without = [where for where, given in made if where.rpartition(":")[0] not in MEASURES and "traffic" not in given]
    assert made and without == []


def test_every_way_of_ours_to_a_filesystem_is_told_how_fast_the_pool_may_go() -> None:
    made = [(where, call.args) for where, name, call in calls() if name == "node_traffic"]
    untold = [where for where, args in made if len(args) != 3 and not isinstance(args[0], ast.Starred)]
    assert len(made) >= 3 and untold == []


def test_a_book_belongs_to_a_filesystem_though_the_directory_is_not_there_yet(tmp_path: Path) -> None:
    assert book_of(tmp_path / "not" / "yet") == book_of(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    assert book_of(tmp_path / "file" / "below") == book_of(tmp_path)
    assert book_of(tmp_path) != book_of(Path("/proc"))
    assert book_of(tmp_path).parent.name == f"ebbtide-{os.getuid()}"


def test_what_was_found_for_a_class_is_kept_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_made", {})
    load = node_traffic(tmp_path, TrafficClass.SERVE_LOAD)
    assert node_traffic(tmp_path / "below", TrafficClass.SERVE_LOAD) is load
    scrub = node_traffic(tmp_path, TrafficClass.SCRUB)
    assert scrub is not load and scrub.kind is TrafficClass.SCRUB
    slow = node_traffic(tmp_path, TrafficClass.SERVE_LOAD, 10**9)
    assert (load.rates.budget.bytes_per_s, slow.rates.budget.bytes_per_s) == (None, 10**9)


def test_a_job_writes_its_checkpoints_in_their_class_as_fast_as_the_pool_may(tmp_path: Path) -> None:
    leave_limits(tmp_path, StorageSection(bytes_per_s_per_node=10**9))
    ports = CheckpointStore(tmp_path / "train" / "run")._checkpoints.ports
    traffic: Traffic = ports.transport._traffic  # type: ignore[attr-defined]
    assert (traffic.kind, traffic.rates.budget.bytes_per_s) == (TrafficClass.CHECKPOINT_WRITE, 10**9)
