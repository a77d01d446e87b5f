"""A commit that moves and renames makes rows stale; a recorded statement carries over those that it is about."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evidence.carried import ROOMS, Statement, record, same, statements
from evidence.processes import POOL
from evidence.stamps import Stamp, with_stamps

ROOT = Path(__file__).parents[2]


def statement(**digests: str) -> Statement:
    return Statement("a", "b", "2026-01-01", "renamed", "2,000 storms gave the same events", digests)


def test_statements_add_up_and_a_later_one_counts_more(tmp_path: Path) -> None:
    path = tmp_path / "carried.json"
    assert statements(path) == [] and same(path) == {}
    record(statement(one="two", other="same"), path)
    record(statement(one="three", two="two"), path)
    assert same(path) == {"one": "three", "other": "same"}
    assert [one.proof for one in statements(path)] == ["2,000 storms gave the same events"] * 2


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The repository as it is checked out, in a commit, with one result of it."""
    top = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(top)], check=True)
    for name in (*ROOMS, "benchmarks", "evidence"):
        subprocess.run(["cp", "-r", f"{ROOT / name}/.", str(top / name)], check=True)
    (top / "evidence" / "carried.json").unlink(missing_ok=True)
    git(top, "add", "-A")
    git(top, "commit", "-q", "--allow-empty", "-m", "as it is")
    return top


def git(top: Path, *words: str) -> str:
    named = ("-c", "user.name=t", "-c", "user.email=t@t")
    done = subprocess.run(["git", *named, *words], cwd=top, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def evidence(top: Path, *words: str, **more: Any) -> str:
    rooms = [str(top / room) for room in ROOMS]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*rooms, str(top)])}
    command = [sys.executable, "-m", "evidence", *words]
    done = subprocess.run(command, cwd=top, env=env, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_a_rename_is_carried_over_and_a_change_after_it_is_not(clone: Path) -> None:
    kinds = [sorted(POOL), ["simulated arbiter"]]
    pool, simulated = json.loads(evidence(clone, "digests", input=json.dumps(kinds)))
    stamps = {
        "kills": ("arbiter x parking", Stamp("c", "h", "2026-01-01 10:00", 60.0, tuple(kinds[0]), pool)),
        "sim": ("seeds 0-49", Stamp("c", "h", "2026-01-01 10:00", 60.0, ("simulated arbiter",), simulated)),
    }
    for name, (case, stamp) in stamps.items():
        (clone / "benchmarks" / "results" / f"{name}.json").write_text(json.dumps(with_stamps({}, {case: stamp})))
    gateway = clone / "serve_apps" / "ebbtide_serve" / "gateway"
    git(clone, "mv", str(gateway / "http" / "sse.py"), str(gateway / "http" / "event_stream.py"))
    for path in (clone / "serve_apps").rglob("*.py"):
        path.write_text(path.read_text().replace("http.sse", "http.event_stream"))
    git(clone, "commit", "-q", "-a", "-m", "renamed")
    told = json.loads(evidence(clone, "show", "kills", "sim", "--json"))
    assert told["kills"]["stale"] == ["arbiter x parking"]
    assert told["sim"]["fresh"] == ["seeds 0-49"], "nothing of the gateway stands behind it"

    evidence(clone, "carry", "HEAD~1", "--why", "the module has another name", "--proof", "the same bytecode")
    told = json.loads(evidence(clone, "show", "kills", "--json"))
    assert told["kills"]["fresh"] == ["arbiter x parking"]

    hold = gateway / "admission" / "held_requests.py"
    hold.write_text(hold.read_text() + "\nCHANGED = True\n")
    told = json.loads(evidence(clone, "show", "kills", "--json"))
    assert told["kills"]["stale"] == ["arbiter x parking"]
