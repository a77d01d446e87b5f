"""How the driver that this process is was submitted, from what Ray's job supervisor has put into its environment."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ebbtide_train.arbiter_client.pool_connection import ADDRESS_VARIABLE
from ebbtide_train.submission.archive import Kind, Submission, Unkept, kept_env
from ebbtide_train.submission.dashboard import NoDashboard, job_service

BY_HAND = "its driver was started by hand, not by `ebbtide submit` or `ray job submit`"
RESTORED_VARIABLE = "EBBTIDE_RESTORED"  # "1" in a driver that the pool itself has submitted
_RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray 2.60's job supervisor (job_supervisor.py)
_RAY_ID = "job_submission_id"
_REPLACED = frozenset({"env_vars", "working_dir", "excludes", "config"})
_OWN = frozenset({ADDRESS_VARIABLE, RESTORED_VARIABLE})  # set anew at each submission


class JobInfos(Protocol):
    """The part of ``ray.job_submission.JobSubmissionClient`` that is used here."""

    def get_job_info(self, job_id: str) -> Any:
        """What Ray knows of a job; has ``entrypoint``."""


def was_restored(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the pool itself has submitted this driver."""
    return (os.environ if environ is None else environ).get(RESTORED_VARIABLE) == "1"


def my_submission(
    job: str,
    incarnation: str,
    *,
    environ: Mapping[str, str] | None = None,
    service: Callable[[], JobInfos] = job_service,
) -> tuple[Submission, Path | None]:
    """This driver's submission and the working directory that Ray gave it, if it gave one.

    Never raises for what cannot be had: the submission then has a ``refusal``.
    """
    told = json.loads((os.environ if environ is None else environ).get(_RAY_JOB) or "{}")
    metadata, runtime_env = dict(told.get("metadata") or {}), dict(told.get("runtime_env") or {})
    submission_id = str(metadata.get(_RAY_ID, ""))
    found = Submission(
        job=job,
        incarnation=incarnation,
        kind=_kind(submission_id),
        submission_id=submission_id,
        metadata={name: text for name, text in metadata.items() if name not in (_RAY_ID, "job_name")},
        archived_s=time.time(),
    )
    if not submission_id:
        return replace(
            found, refusal="its driver was started by hand, not by `ebbtide submit` or `ray job submit`"
        ), None
    try:
        entrypoint = str(service().get_job_info(submission_id).entrypoint)
        env, working_dir = _kept_runtime_env(runtime_env)
    except (Unkept, NoDashboard) as error:
        return replace(found, refusal=str(error)), None
    except (RuntimeError, ConnectionError, OSError) as error:
        return replace(found, refusal=f"Ray's job service did not say how it was submitted ({error})"), None
    return replace(found, entrypoint=entrypoint, runtime_env=env), working_dir


def _kept_runtime_env(told: Mapping[str, Any]) -> tuple[dict[str, Any], Path | None]:
    """What can be handed to another cluster, and the folder that must travel along."""
    kept = {name: value for name, value in told.items() if name not in _REPLACED and not name.startswith("_ray")}
    local = [name for name in ("py_modules", "java_jars") if any(_of_this_cluster(uri) for uri in kept.get(name) or ())]
    if local:
        raise Unkept(f"the files of its {', '.join(local)} are on this cluster only; put them into its working_dir")
    env = kept_env({name: value for name, value in (told.get("env_vars") or {}).items() if name not in _OWN})
    if env:
        kept["env_vars"] = env
    working_dir = told.get("working_dir")
    if working_dir and not _of_this_cluster(working_dir):
        kept["working_dir"] = working_dir  # s3:// and the like: it is there for every cluster
        return kept, None
    return kept, Path.cwd() if working_dir else None


def _of_this_cluster(uri: object) -> bool:
    return str(uri).startswith("gcs://")


def _kind(submission_id: str) -> Kind:
    if not submission_id:
        return "plain"
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "file" if main is not None and main.name == "ebbtide_train.run" else "script"
