"""What a driver finds out about its own submission."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide_train.submission.current_submission import my_submission, was_restored
from ebbtide_train.submission.dashboard import NoDashboard


class Infos:
    """Ray's job service, as far as a driver asks it."""

    def get_job_info(self, job_id: str) -> Any:
        return SimpleNamespace(entrypoint=f"python {job_id}.py")


def environ(**runtime_env: object) -> dict[str, str]:
    metadata = {"job_submission_id": "raysubmit_1", "job_name": "raysubmit_1", "who": "me"}
    return {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": runtime_env, "metadata": metadata})}


def test_a_job_of_rays_job_service_is_kept_with_its_folder() -> None:
    found, folder = my_submission(
        "tide",
        "abc",
        environ=environ(
            working_dir="gcs://_ray_pkg_1.zip",
            pip=["einops"],
            excludes=["x"],
            _ray_commit="1",
            env_vars={"MODE": "fast", "EBBTIDE_RAY_ADDRESS": "old:1", "EBBTIDE_RESTORED": "1"},
        ),
        service=Infos,
    )
    assert (found.refusal, found.kind, found.submission_id) == ("", "script", "raysubmit_1")
    assert found.entrypoint == "python raysubmit_1.py"
    assert found.runtime_env == {"pip": ["einops"], "env_vars": {"MODE": "fast"}}
    assert found.metadata == {"who": "me"}
    assert folder == Path.cwd()


def test_a_folder_that_every_cluster_can_reach_is_named_not_copied() -> None:
    found, folder = my_submission("tide", "abc", environ=environ(working_dir="s3://bucket/x.zip"), service=Infos)
    assert (found.refusal, found.runtime_env, folder) == ("", {"working_dir": "s3://bucket/x.zip"}, None)


def test_without_a_folder_nothing_is_zipped() -> None:
    """Ray runs such a driver in its own place, which may be anybody's."""
    found, folder = my_submission("tide", "abc", environ=environ(), service=Infos)
    assert (found.refusal, folder) == ("", None)


def no_dashboard() -> Infos:
    raise NoDashboard("no dashboard: start Ray with one")


def unreachable() -> Infos:
    raise ConnectionError("refused")


@pytest.mark.parametrize(
    ("env", "service", "says"),
    [
        ({}, Infos, "started by hand"),
        (environ(env_vars={"API_TOKEN": "x"}), Infos, "sets API_TOKEN"),
        (environ(py_modules=["gcs://_ray_pkg_2.zip"]), Infos, "py_modules are on this cluster only"),
        (environ(), no_dashboard, "no dashboard"),
        (environ(), unreachable, "did not say how it was submitted"),
    ],
)
def test_what_cannot_be_repeated_says_why(env: dict[str, str], service: Any, says: str) -> None:
    found, folder = my_submission("tide", "abc", environ=env, service=service)
    assert says in found.refusal
    assert folder is None


def test_a_driver_knows_that_the_pool_submitted_it() -> None:
    assert was_restored({"EBBTIDE_RESTORED": "1"})
    assert not was_restored({})
