"""The lease's way through the environment."""

from pathlib import Path

import pytest

from ebbtide.client.messages import Lease, SlotRef
from ebbtide_serve.process.lease_env import (
    ACTOR_VARIABLE,
    LEASE_VARIABLE,
    EngineLease,
    actor_from_environment,
    lease_from_environment,
    vllm_environment,
)

LEASE = Lease("m/0", 7, (SlotRef("n", 1, "GPU-a"), SlotRef("n", 0)))


@pytest.mark.parametrize("log_dir", [None, Path("/shared/occupancy")])
def test_a_lease_comes_back_as_it_went(log_dir: Path | None) -> None:
    lease = EngineLease(LEASE, Path("/locks"), log_dir)
    assert lease_from_environment({LEASE_VARIABLE: lease.to_json()}) == lease


def test_no_variable_means_no_lease_and_no_actor() -> None:
    assert lease_from_environment({}) is None
    assert actor_from_environment({}) is None
    assert actor_from_environment({ACTOR_VARIABLE: "12:345"}) == (12, 345)


@pytest.mark.parametrize("text", ["{", "[]", '{"lease": {}}', '{"lease": null, "lock_dir": "x", "log_dir": null}'])
def test_a_broken_lease_is_an_error_that_names_the_variable(text: str) -> None:
    with pytest.raises(ValueError, match=LEASE_VARIABLE):
        lease_from_environment({LEASE_VARIABLE: text})


def test_only_a_cpu_pool_gets_the_cpu_settings() -> None:
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" in vllm_environment(Path("/c"), on_gpu=False)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in vllm_environment(Path("/c"), on_gpu=True)
