"""Operating a real pool: what a person asks for, in the order of a working day. One cluster, process engines, no model.

Steps are numbered, since each finds the pool as the one before left it.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from benchmarks.demo.exactness import lost_steps
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import join
from ebbtide.client.cluster_record import load_cluster
from ebbtide_train.session.step_log import step_lines
from ebbtide_train.verification.step_log_comparison import repeat_difference
from tests.integration.conftest import TRAIN, Pool, a_free_port, ebbtide, ebbtide_here

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

JOB = "steady"
JOB_FILE = """
pool: {{name: {pool}}}
jobs:
  - name: {job}
    entrypoint: mytrain:train
    working_dir: code
    args: {{steps: 1000000, pace_s: 0.05}}
    workers: {{min: 1, max: 1}}
    global_batch: 6
    micro_batch: 6
    min_runtime_s: 0
    checkpoint_every_s: 2
    host_memory_per_worker: 64 MiB
"""
ENDPOINT = """
  - name: {name}
    model: {model}
    engine_class: ebbtide_serve.testing.process_engine:ProcessEngine
    replicas: {{min: {least}, max: 2}}
    idle_after_s: 3
    down_after_s: 2
    min_uptime_factor: 0.1
    drain_s: 10
    engine: {{tokens_per_s: 50}}
"""


class Day:
    """The pool, and the file that it is operated with."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.port = folder, name, a_free_port()
        self.mode, self.reserve = "observe", 0
        self.endpoints = {"one": ("m1", 1), "two": ("m1", 1)}

    def write(self, file: str = "pool.yaml", *, shared: str = "shared", name: str = "") -> Path:
        path = self.folder / file
        parts = [ENDPOINT.format(name=one, model=model, least=least) for one, (model, least) in self.endpoints.items()]
        path.write_text(
            f"pool: {{name: {name or self.name}, slots: 3, num_cpus: 16, shared_dir: {shared}, "
            f"host_memory_per_node: 1 GiB, mode: {self.mode}, reserve: {self.reserve}}}\n"
            f"gateway: {{port: {self.port}}}\nendpoints:{''.join(parts) or ' []'}\n"
        )
        return path

    def up(self, *options: str) -> dict[str, Any]:
        found: dict[str, Any] = answer("up", str(self.write()), "--json", *options)
        return found

    @property
    def pool(self) -> Pool:
        return Pool(load_cluster(), self.folder)

    def replicas(self) -> dict[str, int]:
        """Which process serves each seat."""
        return {seat["seat"]: seat["pid"] for seat in self.pool.seats() if seat["state"] == "ready"}


def answer(*arguments: str) -> Any:
    """The JSON that a command prints on stdout."""
    return json.loads(ebbtide_here(*arguments).stdout)


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    folder = tmp_path_factory.mktemp("day")
    before = dict(os.environ)
    os.environ["EBBTIDE_HOME"] = str(folder / "home")
    found = Day(folder, f"d{os.getpid()}")
    try:
        ebbtide("up", str(found.write()))
        join(load_cluster())
        yield found
    finally:
        ray.shutdown()
        ebbtide("down", "--now", check=False)
        os.environ.clear()
        os.environ.update(before)


def test_01_a_first_up_that_observes_takes_nothing_and_says_what_it_would_do(day: Day) -> None:
    day.pool.wait("it says what it would do", lambda: "would: seat one/0" in ebbtide_here("events").output)
    status = day.pool.status()
    assert {slot["state"] for slot in status["slots"]} == {"unfenced"}
    assert ray.util.placement_group_table() == {}
    assert day.pool.seats() == []
    assert status["arbiter"]["mode"] == "observe"
    assert "observe mode" in ebbtide_here("status").output
    assert "would: seat one/0 is granted" in ebbtide_here("why", "one").output


def test_02_manage_is_a_changed_word_and_replicas_start(day: Day) -> None:
    day.mode = "manage"
    changes = day.up()["changes"]
    assert [(change["path"], change["effect"]) for change in changes] == [("pool.mode", "restarts nothing")]
    day.pool.wait("both serve", lambda: set(day.replicas()) == {"one/0", "two/0"})


def test_03_limits_and_bounds_restart_nothing(day: Day) -> None:
    before = day.replicas()
    day.reserve = 1
    assert {change["effect"] for change in day.up()["changes"]} == {"restarts nothing"}
    assert day.replicas() == before


def test_04_only_the_endpoint_whose_model_changed_is_rolled_and_a_rollback_rolls_it_back(day: Day) -> None:
    before = day.replicas()
    day.endpoints["two"] = ("m2", 1)
    assert "(rolls replicas, one at a time)" in ebbtide_here("plan", str(day.write())).output
    done = day.up()
    assert done["unsettled"] == {}
    day.pool.wait("two serves again", lambda: sum(seat.startswith("two/") for seat in day.replicas()) == 1)
    after = day.replicas()
    assert after["one/0"] == before["one/0"], "an endpoint that did not change was restarted"
    assert set(after.values()) != set(before.values())
    refused = ebbtide_here("up", "--rollback", check=False)
    assert refused.exit_code == 2 and "m2 -> " in refused.output and "--yes" in refused.output
    answer("up", "--rollback", "--yes", "--json")
    assert json.loads(day.pool.ask("config"))["endpoints"][1]["model"].endswith("/m1")
    assert day.replicas()["one/0"] == before["one/0"]
    day.endpoints["two"] = ("m1", 1)


def test_05_a_freeze_outlives_the_arbiter_and_nothing_starts_before_unfreeze(day: Day) -> None:
    ebbtide_here("freeze", "--reason", "counting")
    assert "already" in ebbtide_here("freeze").output
    day.endpoints["three"] = ("m1", 1)
    day.up()
    pid = day.pool.status()["arbiter"]["pid"]
    os.kill(pid, signal.SIGKILL)
    day.pool.wait("another arbiter", lambda: day.pool.status()["arbiter"]["pid"] != pid)
    arbiter = day.pool.status()["arbiter"]
    assert arbiter["frozen"].startswith("counting (") and arbiter["frozen_by"] == "person"
    assert arbiter["frozen_since_at_s"] < time.time() - 1
    time.sleep(2)
    assert not any(seat.startswith("three/") for seat in day.replicas())
    day.reserve = 0
    day.up()
    ebbtide_here("unfreeze")
    assert "already" in ebbtide_here("unfreeze").output
    day.pool.wait("three serves", lambda: "three/0" in day.replicas())


def test_06_a_warm_endpoint_that_is_taken_out_drains_and_goes_and_is_unknown_at_once(day: Day) -> None:
    before = day.replicas()
    del day.endpoints["three"]
    assert day.up()["unsettled"] == {}
    assert [one["endpoint"] for one in day.pool.status()["endpoints"]] == ["one", "two"]
    assert day.replicas() == {seat: pid for seat, pid in before.items() if not seat.startswith("three/")}
    assert ask(day, "three") == 404


def ask(day: Day, model: str) -> int:
    request = urllib.request.Request(
        f"http://127.0.0.1:{day.port}/v1/completions",
        json.dumps({"model": model, "prompt": "a", "max_tokens": 2}).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_07_an_arbiter_that_dies_while_it_takes_a_file_leaves_one_file_in_force_whole(day: Day) -> None:
    before = day.pool.ask("config")
    day.endpoints["two"] = ("m3", 1)
    config = json.loads(before)
    config["endpoints"][1]["model"] = str(day.folder / "m3")
    handle = ArbiterLink().handle()
    handle.apply_config.remote(json.dumps(config))
    pid = day.pool.status()["arbiter"]["pid"]
    os.kill(pid, signal.SIGKILL)
    day.pool.wait("another arbiter", lambda: day.pool.status()["arbiter"]["pid"] != pid)
    assert json.loads(day.pool.ask("config")) in (json.loads(before), config)
    assert day.up()["unsettled"] == {}, "the same file again finishes what was begun"
    assert json.loads(day.pool.ask("config")) == config


def test_08_the_only_node_is_not_drained_by_a_slip_and_comes_back(day: Day) -> None:
    node = day.pool.status()["nodes"][0]["node"]
    refused = ebbtide_here("drain", node[:8], check=False)
    assert refused.exit_code == 2 and "only node" in refused.output and "--yes" in refused.output
    assert ebbtide_here("drain", "nowhere", "--yes", check=False).exit_code == 2
    done = answer("drain", node[:8], "--yes", "--reason", "new disk", "--json")
    assert done == {"node": node, "empty": True, "already": False}
    assert day.replicas() == {}
    assert "draining: new disk" in ebbtide_here("status").output
    ebbtide_here("undrain", node[:8])
    day.pool.wait("it serves again", lambda: len(day.replicas()) == 2)


def test_09_logs_are_read_where_they_lie(day: Day) -> None:
    one = answer("logs", "one", "--json")["logs"]
    assert {part["what"] for part in one} == {"one/0"}
    assert any("Finished initializing replica" in line for part in one for line in part["lines"])
    assert any(part["what"] == "gateway" for part in answer("logs", "gateway", "--json")["logs"])
    assert any(
        ":actor_name:Arbiter" in line for part in answer("logs", "arbiter", "--json")["logs"] for line in part["lines"]
    )
    assert ebbtide_here("logs", "nobody", check=False).exit_code == 2


def test_10_what_a_submitted_job_prints_is_read_and_followed(day: Day) -> None:
    (day.folder / "code").mkdir()
    train = textwrap.dedent(TRAIN).replace("optimizer.step()", "optimizer.step(); print('one more step', flush=True)")
    (day.folder / "code" / "mytrain.py").write_text(train)
    file = day.folder / "job.yaml"
    file.write_text(JOB_FILE.format(pool=day.name, job=JOB))
    ebbtide_here("submit", str(file))
    day.pool.wait("its processes have printed", lambda: {"driver", "rank 0"} <= printers(JOB))
    command = [sys.executable, "-m", "ebbtide.cli", "logs", JOB, "--follow", "--lines", "0"]
    followed = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    end = threading.Timer(120, followed.kill)  # ends the reading below
    end.start()
    assert followed.stdout is not None
    seen = list(itertools.islice((line for line in followed.stdout if "one more step" in line), 20))
    followed.send_signal(signal.SIGINT)
    assert followed.wait(30) == 0 and len(seen) == 20, "Ctrl-C is how a person ends it"
    end.cancel()


def test_11_a_job_that_a_person_parks_stands_still_until_it_is_resumed(day: Day) -> None:
    parked = answer("park", JOB, "--reason", "new data", "--json")
    assert (parked["state"], parked["held"]["reason"]) == ("parked", "new data"), (
        "in place, with its slot free for others"
    )
    assert ebbtide_here("park", JOB).exit_code == 0, "asking twice is no error"
    step, pid = day.pool.job(JOB)["step"], day.pool.status()["arbiter"]["pid"]
    os.kill(pid, signal.SIGKILL)
    day.pool.wait("another arbiter", lambda: day.pool.status()["arbiter"]["pid"] != pid)
    time.sleep(2)
    still = day.pool.job(JOB)
    assert (still["state"], still["step"]) == ("parked", step)
    assert "(new data)" in ebbtide_here("why", JOB).output and "held by" in ebbtide_here("status").output
    assert f"job {JOB} is held aside by " in ebbtide_here("events", JOB).output
    assert ebbtide_here("park", "one", check=False).exit_code == 2, "an endpoint is no job"
    assert answer("resume", JOB, "--json")["state"] == "running"
    day.pool.wait("it goes on", lambda: day.pool.job(JOB)["step"] > step)
    assert (day.pool.job(JOB)["restarts"], day.pool.job(JOB)["crashes"]) == (0, 0)


def printers(name: str) -> set[str]:
    done = ebbtide_here("logs", name, "--json", check=False)
    return {part["what"] for part in json.loads(done.stdout)["logs"]} if done.exit_code == 0 else set()


def test_12_a_second_pool_is_refused_with_nothing_changed(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    record, pool = load_cluster(), day.pool
    before = pool.ask("config")
    assert "belongs to the pool" in refusal(day.write("other.yaml", name="other"))
    joining = day.write("joining.yaml", name="other", shared="elsewhere")
    joining.write_text(joining.read_text().replace("slots: 3, num_cpus: 16", f"ray_address: '{record.address}'"))
    assert "One cluster has one pool" in refusal(joining)
    assert "pool.shared_dir" in refusal(day.write("moved.yaml", shared="elsewhere"))
    assert not (day.folder / "elsewhere").exists()
    monkeypatch.setenv("EBBTIDE_HOME", str(day.folder / "another-home"))
    same = day.write("same.yaml")
    assert "runs already" in refusal(same, apart=True)
    assert not (day.folder / "another-home").exists()
    arbiter = psutil.Process(pool.status()["arbiter"]["pid"])
    arbiter.suspend()
    try:
        assert "runs already" in refusal(same, apart=True), "also while the first one's arbiter is silent"
    finally:
        arbiter.resume()
    monkeypatch.undo()
    assert pool.ask("config") == before


def refusal(file: Path, *, apart: bool = False) -> str:
    """What `up` says when it refuses; ``apart``: from a process that has joined nothing."""
    if apart:
        done = ebbtide("up", str(file), check=False)
        code, said = done.returncode, done.stdout
    else:
        here = ebbtide_here("up", str(file), check=False)
        code, said = here.exit_code, here.output
    assert code == 2, said
    return said


def test_13_after_the_loss_of_the_cluster_up_brings_endpoints_and_jobs_back(day: Day) -> None:
    day.pool.wait("a checkpoint lies there", lambda: day.pool.job(JOB)["durable_step"] > 0)
    durable = day.pool.job(JOB)["durable_step"]
    lost = load_cluster()
    ray.shutdown()
    for pid, _started in lost.pids:
        name = psutil.Process(pid).name() if psutil.pid_exists(pid) else ""
        if name in ("gcs_server", "raylet"):
            os.kill(pid, signal.SIGKILL)
    said = ebbtide("up", str(day.write())).stdout
    assert "the pool's Ray cluster is lost" in said and "endpoints one, two" in said and f"jobs {JOB}: " in said
    record = load_cluster()
    assert record.address != lost.address
    join(record)
    day.pool.wait("both serve again", lambda: len(day.replicas()) == 2)
    assert ask(day, "one") == 200
    day.pool.wait("the job goes on", lambda: day.pool.job(JOB)["state"] == "running")
    lines = step_lines(day.pool.shared / "train" / JOB)
    assert lost_steps(lines, day.pool.job(JOB)["crash_lost_steps"]) == 0 and repeat_difference(lines) == ""
    assert durable < day.pool.job(JOB)["step"], "from its last checkpoint on"
    assert answer("cancel", JOB, "--json")["outcome"].startswith("cancelled")
    day.pool.check_promises()


LATER = "later"


def ended_by_sigterm(*arguments: str, when: Callable[[], bool]) -> "subprocess.CompletedProcess[str]":
    """Run a command as a user does, and end it."""
    command = [sys.executable, "-m", "ebbtide.cli", *arguments]
    ran = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline_s = time.monotonic() + 150
        while not when():
            assert time.monotonic() < deadline_s and ran.poll() is None
            time.sleep(0.2)
        ran.terminate()
        said = ran.communicate(timeout=30)[0]
    finally:
        ran.kill()
    return subprocess.CompletedProcess(command, ran.returncode, said)


@pytest.mark.timeout(400)  # a job starts, and a pool; minutes on a busy machine
def test_14_ctrl_c_while_down_waits_leaves_the_pool_up_and_no_step_is_lost(day: Day) -> None:
    file = day.folder / "later.yaml"
    text = JOB_FILE.format(pool=day.name, job=LATER).replace("checkpoint_every_s: 2", "checkpoint_every_s: 600")
    file.write_text(text)
    ebbtide_here("cancel", JOB)  # it is over unless a step was left out, and would have the one slot for jobs
    watched = ended_by_sigterm("submit", str(file), "--follow", when=lambda: day.pool.job(LATER)["step"] > 20)
    assert watched.returncode == 128 + signal.SIGTERM, watched.stdout
    assert watched.stdout.count(f"job {LATER} goes on in the pool: `ebbtide logs {LATER} --follow` follows it, ") == 1
    seen = day.pool.job(LATER)["step"] + 100
    followed = ended_by_sigterm("logs", LATER, "--follow", when=lambda: day.pool.job(LATER)["step"] > seen)
    assert followed.returncode == -signal.SIGTERM, followed.stdout
    for said in (watched.stdout, followed.stdout):
        assert "***" not in said and "Traceback" not in said, said
    assert day.pool.job(LATER)["durable_step"] == 0
    rank = psutil.Process(next(iter(day.pool.job(LATER)["pids"].values())))
    rank.suspend()  # no safe point comes
    try:
        command = [sys.executable, "-m", "ebbtide.cli", "down"]
        waits = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert waits.stdout is not None
        first = waits.stdout.readline()
        assert f"job {LATER} (step " in first and "comes to its next safe point" in first, first
        day.pool.wait("it is asked", lambda: day.pool.job(LATER)["state"] == "stopping")
        waits.send_signal(signal.SIGINT)
        said = waits.communicate(timeout=30)[0]
    finally:
        rank.resume()
    assert waits.returncode == 1 and "the pool is still up and its jobs go on" in said and "Aborted" not in said, said
    day.pool.wait("it runs again", lambda: day.pool.job(LATER)["state"] == "running")
    assert ask(day, "one") == 200
    job = day.pool.job(LATER)
    assert (job["crashes"], job["crash_lost_steps"]) == (0, 0)
    lines = step_lines(day.pool.shared / "train" / LATER)
    assert lost_steps(lines, 0) == 0


@pytest.mark.timeout(400)  # a job starts, and a pool; minutes on a busy machine
def test_15_after_down_and_up_a_job_goes_on_from_the_very_step(day: Day) -> None:
    before = day.pool.job(LATER)["step"]
    day.pool.wait("it has done some more", lambda: day.pool.job(LATER)["step"] > before + 10)
    shared = day.pool.shared
    ray.shutdown()
    said = ebbtide("down").stdout
    found = re.search(rf"job {LATER} has stepped aside at step (\d+), all of it on the shared filesystem", said)
    assert found is not None and "Ray cluster stopped" in said, said
    step = int(found[1])
    assert f"lets go on: {LATER} from step {step}" in said
    assert max(line.step for line in step_lines(shared / "train" / LATER)) == step - 1
    assert "is down already" in ebbtide("down", "--pool", day.name).stdout
    ebbtide("up", str(day.write()))
    join(load_cluster())
    day.pool.wait("it goes on", lambda: day.pool.job(LATER)["step"] > step + 10)
    job = day.pool.job(LATER)
    assert (job["crashes"], job["crash_lost_steps"], job["last_error"]) == (0, 0, None)
    steps = [line.step for line in step_lines(shared / "train" / LATER)]
    assert len(steps) == len(set(steps)), "no step was repeated"
    assert sorted(steps) == list(range(len(steps))), "and none left out"
    day.pool.check_promises()
