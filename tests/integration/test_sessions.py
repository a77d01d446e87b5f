"""Sessions as a new user would try them: run, list, park, resume bit for bit, end, fail, misuse. One cluster.

Steps are numbered, since they share the cluster; each leaves no session behind.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from ebbtide.client.cluster_join import join
from ebbtide.client.cluster_record import load_cluster
from ebbtide.helper.client import Helper
from ebbtide.helper.criu.criu_program import NoCriu, find
from ebbtide.system.runtime_dir import HELPER_SOCKET
from tests.integration.conftest import ROOT, Pool, a_free_port, ebbtide, ebbtide_here
from tests.train_jobs.interactive.chain import check
from tests.train_jobs.interactive.kept import chain, until

# Short: tests/train_jobs/interactive, with real process trees and CRIU, and Ray played. This takes 70 s.
pytestmark = [pytest.mark.ray, pytest.mark.hunt, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("sessions")
    before, here = dict(os.environ), Path.cwd()
    os.environ["EBBTIDE_HOME"] = str(folder / "home")
    (folder / "pool.yaml").write_text(
        f"pool: {{name: s{os.getpid()}, slots: 2, num_cpus: 8, shared_dir: shared, host_memory_per_node: 1 GiB}}\n"
        f"gateway: {{port: {a_free_port()}}}\nendpoints: []\n"
    )
    os.chdir(folder)  # sessions begin where the user is
    try:
        ebbtide("up", str(folder / "pool.yaml"))
        join(load_cluster())
        yield Pool(load_cluster(), folder)
    finally:
        os.chdir(here)
        ray.shutdown()
        ebbtide("down", "--now", check=False)
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def helper(pool: Pool) -> Iterator[Helper]:
    """The node's helper, unless the pool has started one."""
    found = find(os.environ, ROOT)
    if isinstance(found, NoCriu):
        pytest.skip(f"CRIU cannot run here: {found.why}")
    path = Path(pool.ask("hello").lock_dir).parent / HELPER_SOCKET
    client = Helper(path)
    if path.exists():
        yield client
        return
    command = [sys.executable, "-m", "ebbtide.helper", "--socket", str(path), "--criu", str(found.path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    until(path.exists, lambda: "the helper's socket")
    yield client
    process.kill()
    process.wait()


def run(*words: str) -> dict[str, Any]:
    """A detached session; what was said of it."""
    found: dict[str, Any] = json.loads(ebbtide_here("run", "--detach", "--json", *words).stdout)
    return found


def row(name: str) -> dict[str, Any]:
    rows = json.loads(ebbtide_here("sessions", "--json").stdout)["sessions"]
    return next(one for one in rows if one["session"] == name)


def test_1_run_prints_what_the_command_prints_and_ends_as_it_ends(pool: Pool) -> None:
    done = ebbtide("run", "--name", "hello", "--", sys.executable, "-c", "print('hello from the pool')")
    assert "hello from the pool" in done.stdout
    failed = ebbtide(
        "run", "--name", "bad", "--", sys.executable, "-c", "print('why'); raise SystemExit(3)", check=False
    )
    assert failed.returncode == 1 and "ended with 3" in failed.stdout and "why" in failed.stdout
    pool.wait("both to be over", lambda: {pool.job(name)["state"] for name in ("hello", "bad")} == {"ended"})
    assert pool.job("hello")["outcome"].startswith("finished") and pool.job("bad")["outcome"].startswith("failed")
    assert row("bad")["state"] == "ended"


def test_2_parked_and_resumed_it_goes_on_in_the_same_memory(pool: Pool, helper: Helper) -> None:
    file = pool.folder / "chain"
    said = run("--name", "lab", "--", *chain(file))
    assert said["state"] == "running"
    until(file.exists)
    for _ in range(2):
        pool.ask("park_job", "lab", "a test", "tester")
        pool.wait("it to be parked", lambda: pool.job("lab")["state"] == "parked")
        steps = check(file.read_text())
        assert not [slot for slot in pool.status()["slots"] if slot["occupant"] == "lab"]
        assert row("lab")["image_bytes"] > 0
        time.sleep(0.5)
        assert check(file.read_text()) == steps
        pool.ask("resume_job", "lab", "tester")
        pool.wait("it to run", lambda: pool.job("lab")["state"] == "running")
        until(lambda s=steps: check(file.read_text()) > s + 3)  # type: ignore[misc]
    pool.check_promises()
    ebbtide_here("cancel", "lab")
    assert pool.job("lab")["outcome"].startswith("cancelled")
    last = check(file.read_text())
    time.sleep(0.3)
    assert check(file.read_text()) == last, "cancelled it is gone"


def test_3_its_worker_killed_it_goes_back_to_its_image_and_no_slot_has_two(pool: Pool, helper: Helper) -> None:
    file = pool.folder / "again"
    run("--name", "again", "--", *chain(file))
    until(file.exists)
    pool.ask("park_job", "again", "a test", "tester")
    pool.wait("it to be parked", lambda: pool.job("again")["state"] == "parked")
    pool.ask("resume_job", "again", "tester")
    pool.wait("it to run", lambda: pool.job("again")["state"] == "running")
    os.kill(int(pool.job("again")["pids"]["0"]), 9)
    pool.wait("it to have crashed", lambda: pool.job("again")["state"] != "running")
    pool.wait("it to run again", lambda: pool.job("again")["state"] == "running")
    assert "goes back to its last image" in row("again")["remark"]
    pool.check_promises()
    ebbtide_here("cancel", "again")


def test_4_what_is_no_use_is_refused_before_anything_is_submitted(pool: Pool) -> None:
    for words, reason in (
        (("--gpus", "2", "--", "true"), "one GPU"),
        (("--name", "No Name", "--", "true"), "name"),
        (("--pool", "nowhere", "--", "true"), "nowhere"),
        (("--grace", "-1", "--", "true"), "grace_s"),
    ):
        refused = ebbtide_here("run", *words, check=False)
        assert refused.exit_code == 2 and reason in refused.output, refused.output
    assert {job["job"] for job in pool.status()["jobs"]} <= {"hello", "bad", "lab", "again"}


def test_5_down_makes_an_image_of_it_and_after_up_it_goes_on_in_the_same_memory(pool: Pool, helper: Helper) -> None:
    file = pool.folder / "over-night"
    run("--name", "over-night", "--", *chain(file))
    until(file.exists)
    ray.shutdown()
    said = ebbtide("down").stdout
    assert "session over-night has stepped aside at its image, all of it on the shared filesystem" in said, said
    assert "lets go on: over-night" in said
    steps = check(file.read_text())
    time.sleep(0.5)
    assert check(file.read_text()) == steps
    ebbtide("up", str(pool.folder / "pool.yaml"))
    join(load_cluster())
    pool.wait("it to run", lambda: pool.job("over-night")["state"] == "running")
    until(lambda: check(file.read_text()) > steps + 3)
    assert (pool.job("over-night")["crashes"], pool.job("over-night")["crash_lost_steps"]) == (0, 0)
    ebbtide_here("cancel", "over-night")


def test_6_one_that_no_image_can_be_made_of_is_not_waited_for(pool: Pool) -> None:
    command = "import socket; s = socket.create_connection(('127.0.0.1', {port}))"
    with socket.create_server(("127.0.0.1", 0)) as server:  # a connection to outside, which no image takes along
        port = server.getsockname()[1]
        run("--name", "talks", "--", sys.executable, "-c", command.format(port=port) + "; import time; time.sleep(900)")
        talk, _ = server.accept()
        ray.shutdown()
        began_s = time.monotonic()
        said = ebbtide("down").stdout
        talk.close()
    assert "session talks is ended with the pool (" in said and "what it has in memory is lost" in said, said
    assert "Ray cluster stopped" in said and time.monotonic() - began_s < 60
