"""How long a gang has, once its driver was told to stop."""

import pytest

from ebbtide_train.submission.stop_wait import stop_wait_env, stop_wait_s

RAY = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 30.0),  # nobody is known to kill it
        (RAY, 2.0),  # Ray's own 3 s, less what comes after
        ({**RAY, **stop_wait_env(30.0)}, 30.0),
        ({**RAY, "RAY_JOB_STOP_WAIT_TIME_S": "100"}, 30.0),
        ({**RAY, "RAY_JOB_STOP_WAIT_TIME_S": "0"}, 0.0),
        ({**RAY, "RAY_JOB_STOP_WAIT_TIME_S": "soon"}, 2.0),
    ],
)
def test_the_gang_has_its_grace_or_what_ray_leaves_of_it(environ: dict[str, str], seconds: float) -> None:
    assert stop_wait_s(30.0, environ) == seconds
