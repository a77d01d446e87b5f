"""Ray has a hook for `ray start`, and a client server that it leaves out; a new version may have it otherwise."""

import inspect
import os

import pytest
from ray._common.utils import load_class
from ray._private import ray_constants
from ray._private.node import Node
from ray._private.parameter import RayParams

from ebbtide_autoscaler.cluster import ray_start_hook


def test_ray_finds_it_and_starts_no_client_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_start_hook.VARIABLE == ray_constants.RAY_START_HOOK
    monkeypatch.setenv(ray_start_hook.VARIABLE, ray_start_hook.PLACE)
    params = RayParams(ray_client_server_port=10001)
    load_class(os.environ[ray_constants.RAY_START_HOOK])(params, True)
    assert not params.ray_client_server_port
    assert "if self._ray_params.ray_client_server_port:" in inspect.getsource(Node.start_head_processes)


def test_a_ray_start_within_the_cluster_does_not_inherit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be of an environment that has no ebbtide."""
    monkeypatch.setenv(ray_start_hook.VARIABLE, ray_start_hook.PLACE)
    ray_start_hook.leave_out_client_server(RayParams(), True)
    assert ray_start_hook.VARIABLE not in os.environ
