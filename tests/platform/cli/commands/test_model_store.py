"""Where the store of models is, and what happens when it is not there or does not answer."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest

from ebbtide.cli.commands import model_store
from ebbtide.cli.commands.completion import COMPLETE_VARIABLE
from ebbtide.cli.commands.model_store import FirstUse, StoreOptions, as_command_error, complete_models, open_store
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.client.cluster_record import ClusterRecord, save_cluster
from ebbtide.config.sections.storage_section import StorageSection
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.bandwidth.traffic import Traffic
from ebbtide.storage.errors import Corrupt, NoRoom, NotPublished, Refused, StorageError, WaitTimeout
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.store_limits import leave_limits
from ebbtide.storage.transport.transport import Range
from tests.platform.storage.stores import publish_model, store_at


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    return tmp_path


NOTHING = StoreOptions(None, None, None)


def test_the_store_is_below_the_shared_directory_however_that_is_named(home: Path) -> None:
    shared = home / "shared"
    shared.mkdir()
    assert StoreOptions(shared, None, None).root() == shared / "store"
    (home / "pool.yaml").write_text("pool:\n  name: p\n  shared_dir: shared\n")
    assert StoreOptions(None, None, home / "pool.yaml").root() == shared / "store"
    save_cluster(ClusterRecord("p", "h:1", "", "", str(home / "recorded"), ""))
    save_cluster(ClusterRecord("last", "h:1", "", "", str(home / "other"), ""))
    assert StoreOptions(None, "p", None).root() == home / "recorded" / "store"
    assert NOTHING.root() == home / "other" / "store"


def test_a_store_that_is_named_twice_or_not_at_all_is_bad_input(home: Path) -> None:
    with pytest.raises(BadInput, match="name the store once"):
        StoreOptions(home, "p", None).root()
    with pytest.raises(BadInput, match="--shared-dir"):
        NOTHING.root()
    (home / "job.yaml").write_text("pool:\n  name: p\n")
    with pytest.raises(BadInput, match="names no shared_dir"):
        StoreOptions(None, None, home / "job.yaml").root()


def test_a_shared_directory_that_is_not_there_is_bad_input(home: Path) -> None:
    for make in (True, False):
        with pytest.raises(BadInput, match="there is no directory"):
            open_store(StoreOptions(home / "nowhere", None, None), make=make)
    assert not (home / "nowhere").exists()


def test_only_an_import_makes_a_store(home: Path) -> None:
    with pytest.raises(BadInput, match="no models are in"):
        open_store(StoreOptions(home, None, None))
    assert not (home / "store").exists()
    assert open_store(StoreOptions(home, None, None), make=True).list_objects() == []
    open_store(StoreOptions(home, None, None))


def test_what_is_in_force_bounds_the_store_and_so_does_a_file_that_is_named(home: Path) -> None:
    shared = home / "shared"
    shared.mkdir()
    (home / "pool.yaml").write_text("pool: {name: p, shared_dir: shared, storage: {models_max: 2 TB}}\n")
    options = StoreOptions(shared, None, None), StoreOptions(None, None, home / "pool.yaml")
    for where, max_bytes in zip(options, (None, 2 * 10**12), strict=True):
        assert open_store(where, make=True).ports.budget.max_bytes == max_bytes
    leave_limits(shared, StorageSection(models_max=10**12, bytes_per_s_per_node=10**9))
    for where, max_bytes in zip(options, (10**12, 2 * 10**12), strict=True):
        assert open_store(where).ports.budget.max_bytes == max_bytes
    assert [where.limits().bytes_per_s for where in options] == [10**9, None]


def test_a_directory_of_something_else_is_left_alone(home: Path) -> None:
    (home / "store").mkdir()
    (home / "store" / "precious").write_text("x")
    with pytest.raises(BadInput, match="not empty"):
        open_store(StoreOptions(home, None, None), make=True)
    assert [path.name for path in (home / "store").iterdir()] == ["precious"]


def test_a_store_of_a_newer_version_is_left_alone(home: Path) -> None:
    store_at(home / "store")
    (home / "store" / "store.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(BadInput, match="update it"):
        open_store(StoreOptions(home, None, None))


def test_a_directory_that_hangs_is_told_and_not_waited_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()

    def hang(*_: object, **__: object) -> ObjectStore:
        end.wait(60)
        raise AssertionError

    monkeypatch.setattr(model_store, "ANSWER_S", 0.2)
    monkeypatch.setattr(ObjectStore, "at", hang)
    with pytest.raises(CommandFailed, match="does not answer within"):
        open_store(StoreOptions(home, None, None), make=True)
    end.set()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Refused("x"), BadInput),
        (NotPublished("x"), BadInput),
        (NoRoom("x"), CommandFailed),
        (Corrupt("x", Path("y")), CommandFailed),
        (WaitTimeout("x", why="y", after_s=1), CommandFailed),
    ],
)
def test_errors_have_their_exit_codes(error: StorageError, kind: type[click.ClickException]) -> None:
    with pytest.raises(kind, match="x"), as_command_error():
        raise error


def test_buffers_are_made_when_the_first_byte_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, float | None]] = []

    class Transport:
        def __init__(self, _pool: object, *, traffic: Traffic) -> None:
            made.append((traffic.kind.name, traffic.rates.budget.bytes_per_s))

        def read(self, *_: object, **__: object) -> None: ...

    monkeypatch.setattr(model_store, "PosixTransport", Transport)
    monkeypatch.setattr(model_store, "process_pool", lambda: None)
    transport = FirstUse(tmp_path, TrafficClass.PREFETCH, 10**9)
    assert made == []
    for _ in range(2):
        transport.read(tmp_path, [Range(0, 1)], lambda offset, memory: None, deadline_s=1)
    assert made == [("PREFETCH", 10**9)]


# ---- completion


def complete(home: Path, incomplete: str) -> list[str]:
    ctx = click.Context(click.Command("x"))
    ctx.params = {"shared_dir": home}
    return [one.value for one in complete_models(ctx, click.Argument(["name"]), incomplete)]


def test_names_are_offered_with_their_tags(home: Path) -> None:
    store = store_at(home / "store")
    target = publish_model(store)
    store.refs.write("org/model", "v2", target)
    store.refs.write("other", "latest", target)
    store.refs.write("train/run", "step-1", target)
    assert complete(home, "") == ["org/model", "org/model:latest", "org/model:v2", "other", "other:latest"]
    assert complete(home, "org/model:v") == ["org/model:v2"]


def test_whatever_goes_wrong_nothing_is_offered_and_nothing_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete(home / "nowhere", "") == []
    (home / "store").write_text("a file")
    assert complete(home, "") == []
    monkeypatch.setattr(model_store, "COMPLETION_S", 0.05)
    end = threading.Event()

    def hang(*_: object) -> None:
        end.wait(60)
        raise OSError

    monkeypatch.setattr(model_store, "Refs", hang)
    assert complete(home, "") == []
    end.set()


def test_a_shell_completes_names_without_ray(home: Path) -> None:
    store = store_at(home / "shared" / "store")
    publish_model(store)
    save_cluster(ClusterRecord("p", "h:1", "", "", str(home / "shared"), ""))
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print({'ray', 'torch'} & set(sys.modules), file=sys.stderr))\n"
        "from ebbtide.cli.main import main; main()"
    )
    for words, offered in (
        ("ebbtide models export org", {"org/model", "org/model:latest"}),
        ("ebbtide models verify ", {"org/model", "org/model:latest"}),
        ("ebbtide models ex", {"export"}),
        ("ebbtide mod", {"models"}),
    ):
        environ = {
            **os.environ,
            COMPLETE_VARIABLE: "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert {line.partition(",")[2] for line in done.stdout.splitlines()} == offered
        assert done.stderr == "set()\n"
