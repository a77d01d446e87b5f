"""Completion offers the names of the pool at once, and never loads Ray."""

import json
import os
import resource
import sys
from pathlib import Path
from subprocess import run

import pytest
from click.testing import CliRunner

from ebbtide.cli.commands.completion import COMPLETE_VARIABLE
from ebbtide.cli.main import cli
from ebbtide.cli.terminal.completion_names import known_names
from ebbtide.client.cluster_record import ClusterRecord, save_cluster
from ebbtide.client.messages import KeyGrant
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.record import JSON
from ebbtide_autoscaler.journal.key_store import KeyStore, create, key_record

NODE = "ab" * 28


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    save_cluster(ClusterRecord("p", "h:1", "", "", str(tmp_path / "shared"), ""))
    log = EpochLog.open(tmp_path / "shared" / "ledger", writer="test")
    bodies: list[dict[str, JSON]] = [
        {"kind": "node_found", "node": NODE},
        {"kind": "slot_found", "slot": {"id": f"{NODE}:0"}},
        {"kind": "endpoint_declared", "spec": {"name": "chat"}},
        {"kind": "grant_seat", "seat": "chat/0"},
        {"kind": "job_submitted", "spec": {"name": "train"}},
    ]
    events: list[dict[str, JSON]] = [
        {"type": "event", "id": f"1.{n}", "at_s": 1.0, "cause": None, "body": b} for n, b in enumerate(bodies)
    ]
    config: dict[str, JSON] = {"type": "config", "at_s": 1.0, "config": json.dumps({"keys": [{"name": "in-file"}]})}
    made = create(KeyStore(), KeyGrant(name="alice", sha256="a" * 64, scopes=("models",)), frozenset(), 1.0)
    log.append([*events, config, key_record(made, 1.0)]).result(10)
    log.close()
    return tmp_path


def test_every_kind_of_name_is_known(pool: Path) -> None:
    assert known_names() == {
        "job": ["train"],
        "endpoint": ["chat"],
        "seat": ["chat/0"],
        "node": [NODE],
        "slot": [f"{NODE}:0"],
        "key": ["alice"],
    }


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("cancel ", {"train"}),
        ("drain ", {NODE[:8]}),
        ("why ", {"train", "chat", "chat/0", NODE[:8], f"{NODE[:8]}:0"}),
        ("events ch", {"chat", "chat/0"}),
        ("logs ", {"arbiter", "gateway", "train", "chat", "chat/0", NODE[:8]}),
        ("keys revoke ", {"alice"}),
        ("keys rotate ", {"alice"}),
        ("keys create ", {""}),  # a new name: none that is there
        ("dr", {"drain"}),
        ("drain --no", {"--no-wait"}),
    ],
)
def test_a_shell_is_offered_names_quickly_and_without_ray(pool: Path, words: str, offered: set[str]) -> None:
    typed = f"ebbtide {words}"
    environ = {
        **os.environ,
        COMPLETE_VARIABLE: "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split(" ")) - 1),
    }
    code = (
        "import sys, time, atexit\n"
        "atexit.register(lambda: print({'ray', 'torch'} & set(sys.modules), file=sys.stderr))\n"
        "from ebbtide.cli.main import main; main()"
    )
    took_s = []
    for _ in range(3):
        before_s = children_s()
        done = run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False)
        took_s.append(children_s() - before_s)
        assert {line.partition(",")[2] for line in done.stdout.splitlines()} == offered
        assert done.stderr == "set()\n"
    assert min(took_s) < 1.0, "0.2 s of CPU on a quiet machine; a shell waits for it at every TAB"


def children_s() -> float:
    """CPU time of all children so far: unlike the clock it says little about what else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_without_a_pool_nothing_is_offered_and_nothing_said(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "EBBTIDE_HOME": str(tmp_path),
        COMPLETE_VARIABLE: "bash_complete",
        "COMP_WORDS": "ebbtide why ",
        "COMP_CWORD": "2",
    }
    code = "from ebbtide.cli.main import main; main()"
    done = run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.parametrize("command", ["why", "events"])
def test_what_is_offered_is_taken(pool: Path, command: str) -> None:
    for offered in ("train", "chat", "chat/0", NODE[:8], f"{NODE[:8]}:0"):
        done = CliRunner().invoke(cli, [command, offered, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)
    assert CliRunner().invoke(cli, [command, NODE[:3]]).exit_code == 2
    assert CliRunner().invoke(cli, [command, "cd" * 4]).exit_code == 2
