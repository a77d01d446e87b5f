"""The Serve-native form of the policy in a stock Serve file, on a real Ray cluster of four logical GPUs."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema
from ruamel.yaml import YAML

pytestmark = [pytest.mark.ray, pytest.mark.hunt, pytest.mark.timeout(300)]

PORT = 23579
APP = """
import asyncio
from ray import serve

SCALES = dict(min_replicas=0, initial_replicas=0, max_replicas=4, upscale_delay_s=0, downscale_delay_s=0,
              metrics_interval_s=0.5, look_back_period_s=2)

@serve.deployment(name="chat", autoscaling_config=SCALES, max_ongoing_requests=100,
                  ray_actor_options={"num_cpus": 0, "num_gpus": 1}, graceful_shutdown_timeout_s=5)
class Chat:
    async def __call__(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "answered"

chat = Chat.bind()
"""
FILE = """
applications:
  - name: models
    route_prefix: /
    import_path: one_model:chat
    autoscaling_policy:
      policy_function: ebbtide_autoscaler.integrations.ray_serve_policy:ServePolicy
      policy_kwargs:
        gpus: 3
        deployments:
          chat: {target_requests: 4, idle_after_s: 2, down_after_s: 2}
"""


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Ray head whose workers find the application."""
    folder = tmp_path_factory.mktemp("app")
    (folder / "one_model.py").write_text(APP)
    ray_dir = Path(f"/tmp/ebs-{os.getpid()}")  # short: Ray's socket paths have 107 bytes at most
    ray_dir.mkdir()
    environment = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(ray_dir),
        "PYTHONPATH": str(folder),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        flags = [f"--port={PORT}", "--num-cpus=4", "--num-gpus=4", "--node-ip-address=127.0.0.1"]
        flags += ["--include-dashboard=false", "--object-store-memory=83886080", f"--temp-dir={ray_dir}", "--block"]
        log = folder / "head.log"
        with log.open("wb") as out:
            command = [str(Path(sys.executable).with_name("ray")), "start", "--head", *flags]
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            until(lambda: "Ray runtime started" in log.read_text() or process.poll() is not None, 90)
            assert process.poll() is None, log.read_text()
            ray.init(address=f"127.0.0.1:{PORT}", log_to_driver=False)
            yield
            serve.shutdown()  # else its threads join, and so start, a cluster after this one has gone
            ray.shutdown()
        finally:
            for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.wait()
            subprocess.run(["rm", "-rf", str(ray_dir)], check=False)


def until(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline_s, serve.status() if ray.is_initialized() else "no Ray"
        time.sleep(0.1)


def replicas() -> int:
    found = serve.status().applications["models"].deployments["chat"].replica_states
    return int(found.get("RUNNING", 0))


def test_a_stock_file_with_the_policy_scales_a_deployment_up_and_to_nothing(head: None) -> None:
    serve.start(proxy_location="HeadOnly", http_options={"port": PORT + 1})
    _get_global_client().deploy_apps(ServeDeploySchema(**YAML(typ="safe").load(FILE)))
    until(lambda: "models" in serve.status().applications)
    until(lambda: serve.status().applications["models"].status == "RUNNING")
    assert replicas() == 0
    chat = serve.get_deployment_handle("chat", "models")
    answers = [chat.remote(15.0) for _ in range(20)]  # five replicas' worth: three are what it may have
    until(lambda: replicas() == 3)
    assert {answer.result(timeout_s=60) for answer in answers} == {"answered"}
    until(lambda: replicas() == 0)
    until(lambda: ray.available_resources().get("GPU", 0) == 4)  # one that stops has its GPU for a moment still
