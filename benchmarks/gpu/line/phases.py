"""The script: what is played on the pool, in this order, and what each phase finds out."""

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.demo.account import read_events
from benchmarks.demo.client import Outcome
from benchmarks.demo.parked import park_and_kill
from benchmarks.demo.traffic import Request
from benchmarks.gpu.line import moves
from benchmarks.gpu.line.journal import Journal
from benchmarks.gpu.line.machine_facts import machine_facts
from benchmarks.gpu.line.pool import NotSo, Pool, is_free, trains
from benchmarks.gpu.line.script import PartlyFailed, Phase
from benchmarks.gpu.line.setting import JOB, LARGE_DISK_BYTES, LARGE_HOST_BYTES, LARGE_JOB, Setting
from benchmarks.gpu.line.watch import Watch
from benchmarks.pool_run import job_of
from ebbtide.config.loading.pool_file_loader import load
from ebbtide_train.session.step_log import step_lines
from ebbtide_train.verification.control_run import replay
from ebbtide_train.verification.step_log_comparison import compare, segments_of

FIRST = (Request(0.0, 40, 4),)  # the first start of a model on a new store compiles, and publishes what it made
MODEL_S, UP_S, TRAIN_S, EBB_S, FLAT_S = 120.0, 120.0, 120.0, 60.0, 30.0
STEPS_BETWEEN = 10
# The control run and the end of the pool: what no phase before them may take, however it hangs.
LEAVE_S = 105.0
# Name, what it needs, the seconds without which it is not begun, and those that it must leave.
SCRIPT: tuple[tuple[str, tuple[str, ...], float, float], ...] = (
    ("machine", (), 5.0, 0.0),
    ("up", (), 40.0, 0.0),
    ("first", ("up",), 40.0, 0.0),
    ("flat form", ("first",), 10.0, 0.0),
    ("job", ("up",), 30.0, 0.0),
    ("burst", ("first", "job"), 45.0, 30.0),
    ("warm", ("first", "job"), 60.0, LEAVE_S),
    ("spill", ("job",), 30.0, LEAVE_S),
    ("large job", ("first", "job"), 120.0, LEAVE_S),
    ("burst again", ("first", "job"), 40.0, LEAVE_S),
    ("down", ("up",), 5.0, 0.0),
    ("control", ("job",), 25.0, 0.0),
)
SHORT = ("machine", "up", "first", "flat form", "job", "burst", "down", "control")
FLAT_REFS = "flat*"  # names of flat forms in the store's refs


def names() -> tuple[str, ...]:
    """Of all phases, in their order."""
    return tuple(name for name, *_ in SCRIPT)


class Line:
    """One run: the phases share its pool."""

    def __init__(self, setting: Setting, pool: Pool, watch: Watch, journal: Journal) -> None:
        self.setting, self.pool, self.watch, self.journal = setting, pool, watch, journal
        self.idle_mb: float | None = None
        self.file = Path()

    def phases(self) -> Sequence[Phase]:
        """All of them."""
        play = {
            "machine": self.machine,
            "up": self.up,
            "first": self.first,
            "flat form": self.flat_form,
            "job": self.job,
            "burst": self.burst,
            "warm": self.warm,
            "spill": self.spill,
            "large job": self.large_job,
            "burst again": self.burst_again,
            "down": self.down,
            "control": self.control,
        }
        return tuple(Phase(name, play[name], needs, least_s, leave_s) for name, needs, least_s, leave_s in SCRIPT)

    def machine(self) -> Mapping[str, Any]:
        """What this machine has, before anything of ours is on its GPU."""
        self.idle_mb = self.watch.used_mb()
        return {**self.watch.facts(), **machine_facts(self.setting)}

    def up(self) -> Mapping[str, Any]:
        """Model, helper, `ebbtide up`."""
        model_s = self._make_model()
        found: dict[str, Any] = {"model_made_s": model_s}
        try:
            found["helper"] = self.pool.start_helper()
        except NotSo as error:
            found["helper"] = f"not there: {error}"  # the job then steps aside without it, if it can
        self.file = self.setting.write_pool_file()
        began_s = time.monotonic()
        self.pool.command("up", self.file, limit_s=UP_S)
        found["up_s"] = round(time.monotonic() - began_s, 1)
        self.pool.join()
        return found

    def _make_model(self) -> float:
        if self.setting.model is not None:
            return 0.0
        command = [sys.executable, "-m", "benchmarks.gpu.line.model", str(self.setting.model_dir)]
        began_s = time.monotonic()
        log = self.setting.logs / "model.log"
        with log.open("wb") as file:
            done = subprocess.run(
                [*command, *(["--tiny"] if self.setting.cpu else [])],
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=max(1.0, min(MODEL_S, self.pool.left_s())),
            )
        if done.returncode:
            raise NotSo(f"the model was not made: {log.read_text(errors='replace')[-800:]}")
        return round(time.monotonic() - began_s, 1)

    def first(self) -> Mapping[str, Any]:
        """One request on an empty pool: a replica starts for it, from what the model's directory has."""
        return self._asked(FIRST, "first") | self._start()

    def flat_form(self) -> Mapping[str, Any]:
        """What later starts read: published behind the first answer; then the replica idles out."""
        refs = self.setting.shared / "store" / "refs"
        began_s = time.monotonic()
        while not any(refs.glob(FLAT_REFS)):
            if time.monotonic() - began_s > min(FLAT_S, self.pool.left_s()):
                raise NotSo(f"no flat form of the model's weights was published within {FLAT_S:.0f} s")
            time.sleep(0.1)
        found: dict[str, Any] = {"published_after_s": round(time.monotonic() - began_s, 2)}
        found["free_after_s"] = self.pool.wait("the slot is free", EBB_S, is_free)
        if (used_mb := self.watch.used_mb()) is not None:
            # Helper and agent are there by now: what the driver keeps for them belongs to the idle level.
            self.idle_mb = max(self.idle_mb or 0.0, used_mb)
            found["gpu_idle_mb"] = used_mb
        return found

    def job(self) -> Mapping[str, Any]:
        """A training job starts and makes its first steps."""
        return self._train(JOB)

    def _train(self, job: str) -> dict[str, Any]:
        self.pool.command("submit", self.file, "--job", job, "--no-follow")
        found: dict[str, Any] = {}
        found["training_after_s"] = self.pool.wait(f"{job} trains", TRAIN_S, lambda status: trains(status, job))
        found["steps_s"] = self.pool.steps(job, STEPS_BETWEEN, TRAIN_S)
        now = self.pool.job(job)
        found |= {"step_s": now.get("step_s"), "tracked_bytes": now.get("tracked_bytes")}
        return found | {"gpu_training_mb": self.watch.used_mb(), "steps_aside": now.get("steps_aside")}

    def burst(self) -> Mapping[str, Any]:
        """Requests come: the job steps aside in place, a replica answers, idles out, and the job goes on."""
        return self._tide(JOB)

    def burst_again(self) -> Mapping[str, Any]:
        """The same once more, of whichever job trains by now."""
        return self._tide(next(one["job"] for one in self.pool.status()["jobs"] if one["state"] == "running"))

    def _tide(self, job: str) -> dict[str, Any]:
        before = self.pool.job(job)
        found = self._asked(self._burst(), "burst")
        found |= self._start() | {"gpu_serving_mb": self.watch.used_mb()}
        found["training_again_after_s"] = self.pool.wait("it trains again", EBB_S, lambda status: trains(status, job))
        goes_on = int(before["step"]) + STEPS_BETWEEN
        self.pool.wait("it goes on", TRAIN_S, lambda status: int(job_of(status, job).get("step", 0)) >= goes_on)
        after = self.pool.job(job)
        found |= {name: int(after[name]) - int(before[name]) for name in ("parks", "restarts")}
        found |= self._aside(job)
        if not found["parks"] or found["restarts"]:
            raise PartlyFailed(f"the job did not step aside in place: {after.get('in_place_hindered')}", found)
        return found

    def warm(self) -> Mapping[str, Any]:
        """A replica that parks instead of ending, and is woken by the next burst."""
        self.pool.command("up", self.setting.write_pool_file(warm=True))
        found = self._asked(self._burst(), "burst that starts it")
        can = self.pool.endpoint()["seats"][0]
        found |= {"cannot_park": can["cannot_park"], "park_bytes": can["park_bytes"]}
        if can["cannot_park"]:
            # On a CPU vLLM has no sleep mode: that it is said, and that the pool goes on, is all there is to see.
            self.pool.wait("it trains again", EBB_S, lambda status: trains(status, JOB))
            if self.setting.cpu:
                return found
            raise PartlyFailed(f"the replica cannot park: {can['cannot_park']}", found)
        found["parked_after_s"] = self.pool.wait(
            "the replica is parked", EBB_S, lambda s: s["endpoints"][0]["seats"][0]["state"] == "warm"
        )
        found["gpu_parked_mb"] = self.watch.used_mb()
        self.pool.wait("it trains again", EBB_S, lambda status: trains(status, JOB))
        found |= {f"woken_{name}": value for name, value in self._asked(self._burst(), "burst that wakes it").items()}
        woken = [one for one in moves.starts(self._events()) if one.woken]
        if not woken:
            raise PartlyFailed("the parked replica was not woken: another one started", found)
        found |= {"wake_s": woken[-1].took_s, "wake_stages_s": dict(woken[-1].stages_s)}
        self.pool.wait("it trains again", EBB_S, lambda status: trains(status, JOB))
        return found

    def spill(self) -> Mapping[str, Any]:
        """Parked by hand, what it holds is written to the shared directory; its processes are killed; it goes on."""
        assert self.pool.record is not None, "up"
        found = park_and_kill(self.pool.record, JOB, within_s=self.pool.left_s()).as_json()
        if found["went_on_at_step"] != found["parked_at_step"]:
            raise PartlyFailed("it did not go on at the step at which it was parked", found)
        return found

    def large_job(self) -> Mapping[str, Any]:
        """A job with ten times the state, through one burst."""
        if not self.setting.has_room_for_the_large_job:
            raise NotSo(
                f"its state needs {LARGE_HOST_BYTES >> 30} GiB of /dev/shm and 2.5 times that of memory, "
                f"and {LARGE_DISK_BYTES >> 30} GiB free in --work"
            )
        self.pool.command("cancel", JOB)
        self.pool.wait("the slot is free", EBB_S, is_free)
        return self._train(LARGE_JOB) | self._tide(LARGE_JOB)

    def down(self) -> Mapping[str, Any]:
        """Everything ends, and the GPU is as it was."""
        began_s = time.monotonic()
        self.pool.down()
        return {"down_s": round(time.monotonic() - began_s, 1), "gpu_after_mb": self.watch.used_mb()}

    def control(self) -> Mapping[str, Any]:
        """The same steps in a fresh, undisturbed process: the same samples, the same losses to the last bit."""
        job = next(one for one in load(self.file).jobs if one.name == JOB)
        lines = step_lines(self.setting.shared / "train" / JOB)
        steps = sorted({line.step for line in lines if line.rank == 0})
        step_s = max(1e-3, _step_s(lines))
        # As many as there is time for; 20 s for its start, and a third of the time that is left stays.
        most = int(max(0.0, self.pool.left_s() * 0.66 - 20.0) / step_s)
        compared = [line for line in lines if line.step < max(1, most)]
        folder = self.setting.work / "control"
        shutil.rmtree(folder, ignore_errors=True)
        control = replay(
            job.entrypoint,
            job.args,
            segments=segments_of(compared),
            run_dir=folder,
            global_batch=job.global_batch,
            seed=job.seed,
            options={"micro_batch_max": job.micro_batch, "bucket_cap_mb": job.bucket_cap_mb},
        )
        same = compare(compared, control)
        ran = [line.step for line in lines if line.rank == 0]
        stops = moves.stops(self._events(), JOB)
        found = {
            "steps": len(steps),
            "compared_steps": same.steps,
            "stops": len(stops),
            "stops_compared": sum(step < same.steps for step in stops),
            "missing_steps": steps[-1] + 1 - len(steps),
            "repeated_steps": len(ran) - len(steps),
            "losses_equal": same.losses_identical,
            "samples_equal": same.samples_identical,
        }
        if not (same.losses_identical and same.samples_identical) or found["missing_steps"] or found["repeated_steps"]:
            raise PartlyFailed(same.first_difference or "a step is missing, or was run twice", found)
        if not found["stops_compared"]:
            at = f"it was parked at {', '.join(map(str, stops))}" if stops else "it was never parked in place"
            raise PartlyFailed(f"{same.steps} steps of the job were compared, and {at}", found)
        return found

    def _burst(self) -> tuple[Request, ...]:
        return tuple(Request(number * 0.1, 100 + 7 * number, 24 + number) for number in range(self.setting.burst))

    def _asked(self, requests: Sequence[Request], what: str) -> dict[str, Any]:
        began_s = time.monotonic()
        outcomes = self.pool.ask(requests)
        took_s = time.monotonic() - began_s
        good = sorted(one.ttft_s for one in outcomes if one.ok)
        found: dict[str, Any] = {"requests": len(outcomes), "answered": len(good), "took_s": round(took_s, 2)}
        if good:
            found |= {"ttft_first_s": round(good[0], 3), "ttft_p50_s": round(good[len(good) // 2], 3)}
            found |= {"ttft_last_s": round(good[-1], 3), "tokens": sum(one.tokens for one in outcomes)}
        if len(good) < len(outcomes):
            raise PartlyFailed(f"{what}: {len(outcomes) - len(good)} requests failed: {_errors(outcomes)}", found)
        return found

    def _start(self) -> dict[str, Any]:
        found = moves.starts(self._events())
        if not found:
            return {}
        last = found[-1]
        return {"start_s": last.took_s, "start_stages_s": dict(last.stages_s), "weights_by": last.weights}

    def _aside(self, job: str) -> dict[str, Any]:
        found = [
            one for one in moves.asides(self._events(), self.journal.samples(), idle_mb=self.idle_mb) if one.job == job
        ]
        if not found:
            return {}
        last = found[-1]
        return {
            "parked_s": last.parked_s,
            "gpu_free_s": last.free_s,
            "gpu_least_mb": last.least_mb,
            "resume_s": last.resume_s,
        }

    def _events(self) -> list[Any]:
        return read_events(self.setting.shared / "ledger")


def _step_s(lines: Sequence[Any]) -> float:
    """The median time of a step, by the times at which steps ended."""
    ends = sorted(line.t for line in lines if line.rank == 0)
    apart = sorted(later - earlier for earlier, later in pairwise(ends))
    return float(apart[len(apart) // 2]) if apart else 1.0


def _errors(outcomes: Sequence[Outcome]) -> str:
    return "; ".join(sorted({f"{one.status} {one.error}"[:200] for one in outcomes if not one.ok})[:3])
