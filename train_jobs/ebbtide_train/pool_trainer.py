"""``PoolTrainer``: an author's train function as a job of the pool, with one call.

::

    PoolTrainer(train, name="pretrain", workers=(1, 4), global_batch=64).fit()

It registers the job with the arbiter, waits for slots, runs, steps aside when asked, and goes on; ``fit`` returns when
the job is over. The same name goes on from the job's last commit.

When this process dies the job dies with it. The pool then submits it again, if it was submitted in a way that can be
repeated (see ``archive``), and it goes on from the commit.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError
from ray import cloudpickle
from ray.exceptions import RayActorError, RayError
from ray.train import Result, TrainingFailedError

from ebbtide.client.messages import PoolRuntime
from ebbtide.config.sections.job_section import JobSection
from ebbtide.storage.checkpoints.manager.fresh_start import set_aside
from ebbtide.storage.checkpoints.run_directory.run_paths import run_paths
from ebbtide.storage.errors import StorageError
from ebbtide_train.arbiter_client.controller_link import ControllerLink
from ebbtide_train.arbiter_client.link import Link
from ebbtide_train.arbiter_client.pool_connection import ask, connect
from ebbtide_train.arbiter_client.state_lines import StateLines, first_line, job_view
from ebbtide_train.controller.failure_causes import describe
from ebbtide_train.controller.leased_trainer import LeasedTrainer
from ebbtide_train.controller.train_internals import causes
from ebbtide_train.errors import BadJob, JobLost, JobRefused
from ebbtide_train.interactive.spec import SessionPlan
from ebbtide_train.session.errors import Cancelled
from ebbtide_train.submission.archive import Archive, Submission, Unkept
from ebbtide_train.submission.current_submission import my_submission, was_restored
from ebbtide_train.submission.stop_wait import stop_wait_s
from ebbtide_train.worker.job_plan import JobPlan

MICRO_BATCH = 64  # at most, where the author gives none: the session's own default
LAST_WORD_S = 5.0  # nobody waits longer for a driver that has ended; one that was told to stop may have less
ASK_S = 0.5  # to ask for the way out: of the 3 s that Ray leaves by default
FURTHER = "raise its steps to go on, or submit it with --fresh (PoolTrainer: fresh=True) to begin anew"
AGAIN_S = 60.0  # an arbiter that must hear of an end before the job can be submitted again; it restarts within seconds

TrainFunction = Callable[[Mapping[str, Any]], object]


def job_section(name: str, *, workers: tuple[int, int] | int, global_batch: int, **more: Any) -> JobSection:
    """The settings of a job from plain values; ``more`` are further keys of ``jobs`` in a pool's file.

    Raises:
        BadJob: they contradict each other, or one is not known.
    """
    least, most = (workers, workers) if isinstance(workers, int) else workers
    given = {
        "entrypoint": "unused:unused",  # the function itself is given
        "micro_batch": min(global_batch, MICRO_BATCH),
        **more,
        "name": name,
        "workers": {"min": least, "max": most},
        "global_batch": global_batch,
    }
    try:
        return JobSection.model_validate(given, strict=False)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'job'}: {e['msg']}" for e in error.errors(include_url=False)]
        raise BadJob(f"job {name!r}: {'; '.join(problems)}") from None


class PoolTrainer(LeasedTrainer):
    """One job. Making one joins the pool's cluster; nothing is submitted before ``fit``."""

    def __init__(
        self,
        train: TrainFunction | None,
        *,
        args: Mapping[str, Any] | None = None,
        job: JobSection | None = None,
        session: SessionPlan | None = None,
        fresh: bool = False,
        **settings: Any,
    ) -> None:
        """Either ``job``, or its ``settings``: see :func:`job_section`.

        Args:
            train: called in every worker with ``args``; None: ``job.entrypoint`` is imported there.
            args: default: those of ``job``.
            session: the job keeps a process tree and does not train; see ``interactive``.
            fresh: begin at step 0. What one of its name has saved is put aside, as ``train/<name>@<time>``.

        Raises:
            BadJob: the settings are wrong.
            NoArbiter: there is no pool here.
        """
        section = job_section(**settings) if job is None else job
        self._link = connect()
        self._runtime: PoolRuntime = ask(self._link, "hello")
        plan = JobPlan(
            section=section,
            incarnation=_incarnation(),
            shared_dir=self._runtime.shared_dir,
            lock_dir=self._runtime.lock_dir,
            ledger=self._runtime.ledger,
            train=None if train is None else cloudpickle.dumps(train),
            session=session,
            again=was_restored(),
        )
        self._args = dict(section.args if args is None else args)
        super().__init__(plan, self._args)
        self._fresh = fresh and not was_restored()  # the pool submits again what has begun anew already
        self._standing_in: ControllerLink | None = None
        self._left_how = "before its controller ran"

    def fit(self) -> Result:
        """Run the job to its end, however often it steps aside; blocks.

        A controller that dies takes its gang with it; the job is then submitted again, and goes on from its commit.

        Returns:
            Ray Train's result; its ``return_value`` is that of rank 0.

        Raises:
            JobRefused: the arbiter will not take it.
            TrainingFailedError: it failed too often without progress (Ray Train's own; has the causes).
            Cancelled: it was cancelled; its last commit stays.
            JobLost: its controller died too often.
        """
        again = was_restored()
        for left in reversed(range(self._plan.section.max_failures + 1)):
            try:
                return self._fit_once(again=again)
            except JobLost as error:
                again = True
                if not left:
                    raise
                _say(f"{error}; submitting it again")
                # Under a new name of its own: nothing that the dead controller said or was told counts any more.
                LeasedTrainer.__init__(self, replace(self._plan, incarnation=_incarnation(), again=True), self._args)
        raise AssertionError("max_failures is not negative")

    def _fit_once(self, *, again: bool) -> Result:
        section, incarnation = self._plan.section, self._plan.incarnation
        self._register(again=again)
        archive = Archive(Path(self._runtime.shared_dir))
        with _Ending(self._link, section.name, incarnation, archive) as ending:
            self._standing_in = ControllerLink(
                self._link, job=section.name, incarnation=incarnation, takes_leases=False
            )
            self._standing_in.start()
            try:
                if self._fresh and not again:
                    self._set_aside(ending)
                _keep(archive, *my_submission(section.name, incarnation))
                result = super().fit()
            except TrainingFailedError as error:
                found = causes(error)
                cancelled = next((c for c in found.values() if isinstance(c, Cancelled)), None)
                if cancelled is None:
                    ending.outcome = "failed"
                    ending.detail = "\n".join(part for part in (self._why or describe(found), self._last_words) if part)
                    raise
                ending.outcome, ending.detail = "cancelled", str(cancelled)
                raise Cancelled(str(cancelled)) from None
            except RayActorError as error:
                # Not "lost": that is for the pool to act on, and this process submits the job again by itself.
                ending.outcome, ending.detail = "failed", "its Train controller died"
                ending.patience_s = AGAIN_S
                raise JobLost(f"job {section.name}: its Train controller died ({_first_line(error)})") from error
            except (KeyboardInterrupt, SystemExit):
                ending.outcome, ending.detail = "cancelled", f"its driver was told to stop; {self._left_how}"
                raise
            finally:
                self._before_run()
            ending.outcome, ending.detail = self._verdict(result)
            return result

    def _set_aside(self, ending: "_Ending") -> None:
        """Now that no other job of this name can be taken in, and before a gang of this one can begin."""
        paths = run_paths(Path(self._runtime.shared_dir), self._plan.section.name)
        try:
            aside = set_aside(paths, now_s=time.time())
        except StorageError as error:
            ending.detail = f"it cannot begin anew: {error}"
            raise JobRefused(f"job {paths.run} cannot begin anew: {error}") from error
        if aside is not None:
            _say(f"job {paths.run} begins at step 0; what it had is kept: `ebbtide checkpoints list {aside.name}`")

    def _verdict(self, result: Result) -> tuple[str, str]:
        """Outcome and detail of a job whose ranks have all returned."""
        ran = self._course
        if ran is None or not ran.total:
            return "finished", "its train function returned"
        if ran.began >= ran.total:
            return "finished", f"already at step {ran.finished} of {ran.total}: nothing was trained; {FURTHER}"
        return "finished", f"at step {ran.finished} of {ran.total}"

    def _register(self, *, again: bool) -> None:
        section = self._plan.section
        details = {
            "entrypoint": section.entrypoint,
            "global_batch": section.global_batch,
            "restored": again,
            "fresh": self._fresh,
        }
        try:
            ask(self._link, "register_job", section.spec(), self._plan.incarnation, details)
        except ValueError as error:
            raise JobRefused(str(error)) from error

    def _before_run(self) -> None:
        # Until now this process spoke for the job: a controller takes seconds to start, and silence means death.
        if self._standing_in is not None:
            self._standing_in.stop()
            self._standing_in = None

    def _ask_to_leave(self) -> float:
        """This process was told to stop: have the gang leave at its next safe point, with its state committed."""
        self._left_how = "it falls back to its last checkpoint"
        try:
            job, incarnation = self._plan.section.name, self._plan.incarnation
            self._link.call("cancel_submission", job, incarnation, "its driver was told to stop", timeout_s=ASK_S)
        except (ValueError, RayError):
            return 0.0  # it is over already, or nobody can be asked
        return stop_wait_s(self._plan.section.grace_s)

    def _has_left(self) -> None:
        self._left_how = "everything it did is committed"


def _keep(archive: Archive, submission: Submission, working_dir: Path | None) -> None:
    try:
        kept = archive.keep(submission, working_dir)
    except (OSError, Unkept) as error:
        refusal = f"its submission cannot be written down ({error})"
    else:
        refusal = kept.refusal
    if refusal:
        _say(f"job {submission.job}: should its driver die, submit it again by hand: {refusal}")


class _Ending:
    """Follows a job aloud, and tells the arbiter at the end how it went, whatever happens."""

    def __init__(self, link: Link, job: str, incarnation: str, archive: Archive) -> None:
        self._link, self._job, self._incarnation = link, job, incarnation
        self._archive = archive
        self.patience_s = LAST_WORD_S
        self.outcome, self.detail = "failed", "its driver met an error before the job ran"
        self._lines = StateLines(link, job, _say)

    def __enter__(self) -> Self:
        self._lines.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lines.stop()
        _say(f"job {self._job}: {self.outcome}: {first_line(self.detail)}")  # what its ranks printed stands above
        deadline_s = time.monotonic() + self.patience_s
        while time.monotonic() < deadline_s:
            self._link.call("job_ended", self._job, self._incarnation, self.outcome, self.detail)
            view = job_view(self._link.call("status"), self._job)
            if view is not None and view["state"] == "ended":
                if (view["outcome"] or "").startswith("lost"):  # this driver; the pool needs what it kept
                    _say(f"job {self._job}: the pool has taken this driver for dead and submits the job again")
                else:
                    self._forget()
                return
            time.sleep(0.2)
        # An arbiter that never hears it takes the silence for a loss after a while, and submits the job again.

    def _forget(self) -> None:
        """Nobody needs what was kept any more: an arbiter has heard that the job is over."""
        try:
            self._archive.forget(self._job)
        except OSError as error:
            _say(f"job {self._job}: what was kept of its submission stays: {error}")


def _incarnation() -> str:
    return uuid.uuid4().hex[:12]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _say(line: str) -> None:
    print(f"ebbtide: {line}", flush=True)
