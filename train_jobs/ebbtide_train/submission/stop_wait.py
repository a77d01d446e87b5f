"""How long a driver that was told to stop may take: until then its gang can leave with everything committed.

``ray job stop`` sends SIGTERM and kills after RAY_JOB_STOP_WAIT_TIME_S, by default 3 s; the job's supervisor reads that
from the job's own runtime_env (Ray 2.60, job_supervisor.py), so ``ebbtide submit`` sets it to the job's grace. One who
uses `ray job submit` can do the same. Without Ray's supervisor nobody is known to be waiting: the grace counts.
"""

import math
import os
from collections.abc import Mapping

VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"
RAY_DEFAULT_S = 3.0
_IN_RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_REST_S = 1.0  # of that time: to end the controller and tell the arbiter (0.1 to 0.3 s on a quiet machine)
_MARGIN_S = 5.0  # beyond the grace: the same, on a busy machine


def stop_wait_env(grace_s: float) -> dict[str, str]:
    """What a submission puts into its runtime_env, so that Ray waits for the job's grace."""
    return {VARIABLE: str(math.ceil(grace_s + _MARGIN_S))}


def stop_wait_s(grace_s: float, environ: Mapping[str, str] | None = None) -> float:
    """Seconds that the gang of this driver has from now on, to reach a safe point and commit."""
    given = os.environ if environ is None else environ
    if _IN_RAY_JOB not in given:
        return grace_s
    try:
        allowed_s = float(given.get(VARIABLE, RAY_DEFAULT_S))
    except ValueError:
        allowed_s = RAY_DEFAULT_S
    return min(grace_s, max(0.0, allowed_s - _REST_S))
