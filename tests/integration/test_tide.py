"""The whole line, for real: Ray, Serve, vLLM, Train, HTTP; and everything that may die dies once, during a move.

One pool, one job, in this order: three ways to submit, a tide with the unmodified openai client, then the kills. Every
test leaves the pool idle or training, and all of it is checked against the promises at the end.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest

from benchmarks.demo.exactness import lost_steps
from ebbtide_train.session.step_log import step_lines
from ebbtide_train.verification.step_log_comparison import repeat_difference
from tests.integration.conftest import Pool, ebbtide

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.timeout(600)]
JOB = "long"


class Asking:
    """A user who asks once, in a thread of his own."""

    def __init__(self, pool: Pool, *, tokens: int = 8) -> None:
        self._client = openai.OpenAI(
            base_url=f"{pool.record.gateway_url}/v1", api_key="none", max_retries=0, timeout=200
        )
        self._tokens = tokens
        self.chunks = 0
        self.usage = 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            stream = self._client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "import os"}],
                max_tokens=self._tokens,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            for chunk in stream:
                self.chunks += 1
                self.usage = chunk.usage.completion_tokens if chunk.usage else self.usage
        except openai.OpenAIError as error:
            self.error = error

    def answered(self, limit_s: float = 150.0) -> bool:
        self._thread.join(limit_s)
        return not self._thread.is_alive() and self.error is None and self.usage == self._tokens


@pytest.fixture(scope="module")
def long_job(pool: Pool) -> Iterator["subprocess.Popen[str]"]:
    driver = pool.drive(JOB, steps=1_000_000, workers=(1, 3))
    yield driver
    driver.terminate()
    driver.wait(30)


def running(pool: Pool, workers: int = 3) -> None:
    """Wait until the job trains on so many slots and has made some steps there."""
    pool.wait(
        f"job trains on {workers}", lambda: (j := pool.job(JOB))["state"] == "running" and len(j["slots"]) == workers
    )
    first = pool.job(JOB)["step"]
    pool.wait("it makes steps", lambda: pool.job(JOB)["step"] >= first + 5)


def test_1_three_ways_of_submitting_a_job_reach_the_pool(pool: Pool) -> None:
    env = {**os.environ, **pool.record.env}
    ray_job = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--no-wait", "--working-dir"]
    ebbtide("submit", str(pool.folder / "pool.yaml"), "--job", "from-file")
    run = (pool.folder / "pool.yaml").read_text().replace("name: from-file", "name: by-run")
    (pool.folder / "run.yaml").write_text(run)
    commands = (
        [*ray_job, str(pool.folder), "--", "python", "-m", "ebbtide_train.run", "run.yaml", "--job", "by-run"],
        [*ray_job, str(pool.folder), "--", "python", "mytrain.py", "by-script", "30", "1", "1", "0"],
    )
    for command in commands:
        done = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout
    for name in ("from-file", "by-run", "by-script"):
        pool.wait(f"{name} has ended", lambda name=name: pool.job(name)["state"] == "ended", limit_s=180)  # type: ignore[misc]
        assert str(pool.job(name)["outcome"]).startswith("finished"), pool.job(name)
        assert len({line.step for line in step_lines(pool.shared / "train" / name)}) == 30


def test_2_a_request_parks_the_job_in_place_and_the_ebb_brings_it_back(
    pool: Pool, long_job: "subprocess.Popen[str]"
) -> None:
    running(pool)
    asking = Asking(pool)
    pool.wait("parked", lambda: pool.job(JOB)["state"] == "parked", limit_s=30)
    pids = pool.job(JOB)["pids"]
    assert asking.answered(), asking.error
    pool.wait("training has all its slots back", lambda: pool.job(JOB)["state"] == "running")
    assert pool.job(JOB)["pids"] == pids, "it came back in place: the same processes"
    assert pool.job(JOB)["parks"] >= 1
    told = ebbtide("why", JOB).stdout
    assert "steps aside in place" in told and "all its slots are free again" in told
    running(pool)
    pool.check_promises()


@pytest.mark.hunt  # short: replica x draining of the kill table, and test_parent_watch.py for its engine
@pytest.mark.usefixtures("long_job")
def test_3_a_replicas_actor_is_killed_and_no_engine_process_is_left(pool: Pool) -> None:
    running(pool)
    assert Asking(pool).answered()
    seat = next(seat for seat in pool.seats() if seat["state"] == "ready")
    actor = psutil.Process(seat["pid"])
    engines = [child for child in actor.children(recursive=True) if child.is_running()]
    assert engines, "vLLM's engine runs in a process of its own"
    busy = Asking(pool, tokens=300)
    pool.wait("it streams", lambda: busy.chunks > 3, limit_s=60)
    actor.kill()
    _, left = psutil.wait_procs(engines, timeout=5)
    assert left == [], "an engine has outlived its actor"
    assert not busy.answered(60), "a begun stream cannot be finished"
    assert busy.error is not None, "and it ends with an error, never in silence"
    assert Asking(pool).answered(), "another replica takes over"
    running(pool)
    pool.check_promises()


@pytest.mark.hunt  # short: tests/train_jobs/test_two_nodes.py kills a rank that was parked
@pytest.mark.usefixtures("long_job")
def test_4_a_parked_worker_is_killed_and_nothing_durable_is_lost(pool: Pool) -> None:
    running(pool)
    asking = Asking(pool)
    pool.wait(
        "parked and spilled", lambda: (j := pool.job(JOB))["state"] == "parked" and j["durable_step"] == j["step"]
    )
    crashes = pool.job(JOB)["crashes"]
    os.kill(pool.job(JOB)["pids"]["1"], signal.SIGKILL)
    assert asking.answered(), asking.error
    pool.wait("the crash was seen", lambda: pool.job(JOB)["crashes"] == crashes + 1)
    assert pool.job(JOB)["crash_lost_steps"] == 0
    running(pool)
    pool.check_promises()


def test_5_no_step_was_lost_and_repeated_steps_gave_the_same_losses(pool: Pool) -> None:
    lines = step_lines(pool.shared / "train" / JOB)
    crash_lost = pool.job(JOB)["crash_lost_steps"]
    assert lost_steps(lines, crash_lost) == 0
    assert repeat_difference(lines) == ""


def test_6_what_a_running_pool_cannot_take_is_refused_and_changes_nothing(pool: Pool, tmp_path: Path) -> None:
    other = (pool.folder / "pool.yaml").read_text().replace("slots: 3", "slots: 2")
    (pool.folder / "other.yaml").write_text(other)
    before = pool.ask("config")
    done = ebbtide("up", str(pool.folder / "other.yaml"), check=False)
    assert done.returncode == 2
    assert "pool.slots: 3 -> 2" in done.stdout
    assert pool.ask("config") == before
    assert ebbtide("plan", str(pool.folder / "pool.yaml")).stdout.strip() == "nothing to change"
