"""``python -m ebbtide_train.run_interactive FILE``: a session's driver, as `ebbtide run` submits it.

A session is a job of one worker for the pool; this is to it what ``ebbtide_train.run`` is to a training job. Exit 0 =
its command ended with 0, 1 = it failed, was cancelled or lost, 2 = the file or the pool refuses and nothing was begun.
"""

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from ray.train import Result, TrainingFailedError

from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.config.sections.sessions_section import SessionsSection
from ebbtide_train.arbiter_client.park_requests import ParkRequests
from ebbtide_train.arbiter_client.pool_connection import ask, connect
from ebbtide_train.arbiter_client.state_lines import job_view
from ebbtide_train.controller.failure_causes import describe
from ebbtide_train.controller.train_internals import causes
from ebbtide_train.errors import JobLost, NoArbiter, PoolProblem
from ebbtide_train.interactive.idle_detection.idle_rules import IdleRules
from ebbtide_train.interactive.idle_detection.owner_notices import Mail, Webhook
from ebbtide_train.interactive.session_folder import SessionFolder
from ebbtide_train.interactive.spec import SessionPlan, SessionSpec
from ebbtide_train.interactive.supervision.session_supervisor import End, Verdict
from ebbtide_train.pool_trainer import PoolTrainer, job_section
from ebbtide_train.session.errors import Cancelled
from ebbtide_train.submission.interactive_request import Request

TOUCH_LOOK_S = 2.0  # a look is one stat on the shared directory


class SessionTrainer(PoolTrainer):
    """A job whose rank keeps a process tree; its outcome is that of the command."""

    def _verdict(self, result: Result) -> tuple[str, str]:
        said = result.return_value
        if isinstance(said, Verdict) and said.end is End.FINISHED:
            return "finished", said.text
        return "failed", said.text if isinstance(said, Verdict) else "its keeper ended without a word"


def plan_of(request: Request, sessions: SessionsSection) -> SessionPlan:
    """The plan of a request, completed by what the pool says of sessions.

    Raises:
        ValueError: the two contradict each other.
    """
    idle_after_s = sessions.idle_after_s if request.idle_after_s is None else request.idle_after_s
    spec = SessionSpec(
        name=request.name,
        command=request.command,
        cwd=request.cwd,
        owner=request.owner,
        idle=IdleRules(idle_after_s=idle_after_s or None, warn_before_s=sessions.warn_before_s),
    )
    ways: list[Webhook | Mail] = [] if sessions.webhook is None else [Webhook(sessions.webhook)]
    if sessions.smtp is not None:
        ways.append(Mail(**sessions.smtp.model_dump()))
    return SessionPlan(spec, tuple(ways))


def job_settings(request: Request) -> Mapping[str, Any]:
    """What the pool is told of it as a job."""
    return {
        "name": request.name,
        "workers": 1,
        "global_batch": 1,
        "owner": request.owner,
        "priority": request.priority,
        "grace_s": request.grace_s,
        "min_runtime_s": 0.0,
        "host_memory_per_worker": request.host_memory,
        "cpus_per_worker": request.cpus,
    }


class TouchWatch:
    """Lets a held session go on when its owner touches it: also while it has no supervisor, having left its node."""

    def __init__(self, place: SessionFolder, trainer_link: Any, session: str) -> None:
        self._place, self._link, self._session = place, trainer_link, session
        self._wishes = ParkRequests(trainer_link, session)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="touch-watch", daemon=True)

    def start(self) -> None:
        """Begin, in a daemon thread."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._over.set()

    def _watch(self) -> None:
        seen_s = self._place.touched_s()
        while not self._over.wait(TOUCH_LOOK_S):
            now_s = self._place.touched_s()
            if now_s == seen_s:
                continue
            if not seen_s:  # its supervisor has made the file: no user has touched it
                seen_s = now_s
                continue
            view = job_view(self._link.call("status"), self._session)
            if view is not None and (not view.get("held") or self._wishes.resume("touched by its owner")):
                seen_s = now_s


def run(request: Request) -> Result:
    """Run the session to its end; raises as `PoolTrainer.fit` does."""
    link = connect()
    runtime = ask(link, "hello")
    sessions = SessionsSection.model_validate_json(runtime.sessions or "{}")
    trainer = SessionTrainer(None, job=job_section(**job_settings(request)), session=plan_of(request, sessions))
    watch = TouchWatch(SessionFolder(Path(runtime.shared_dir) / "train" / request.name), link, request.name)
    watch.start()
    try:
        return trainer.fit()
    finally:
        watch.stop()


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def main(file: Path) -> None:
    """Run the session of FILE on the pool, in the foreground."""
    try:
        result = run(Request.from_json(file.read_text()))
    except NoArbiter as error:
        raise CommandFailed(str(error)) from error
    except (PoolProblem, OSError, ValueError) as error:
        raise BadInput(str(error)) from error
    except (Cancelled, JobLost) as error:
        raise CommandFailed(str(error)) from error
    except TrainingFailedError as error:
        raise CommandFailed(f"the session failed: {describe(causes(error))}") from error
    said = result.return_value
    sys.exit(0 if isinstance(said, Verdict) and said.end is End.FINISHED else CommandFailed.exit_code)


if __name__ == "__main__":
    main(prog_name="python -m ebbtide_train.run_interactive")
