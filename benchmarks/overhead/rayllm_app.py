"""``ray.serve.llm`` as its documentation has it, one replica on the CPU; a child of ``systems``.

Answers with one line of JSON for each line of input: "start" deploys and says how long it took until a request was
answered, "stop" deletes the application.
"""

import json
import sys
import time
import urllib.error
import urllib.request
from contextlib import redirect_stdout
from typing import Any

import ray
from ray import serve

APP = "llm"


def main(model: str, port: int, engine_json: str, env_json: str) -> None:
    """Until the input ends."""
    answers = sys.stdout
    with redirect_stdout(sys.stderr):
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        from ray.serve.llm import LLMConfig, build_openai_app  # noqa: PLC0415 - 17 s, before any clock runs

        none = {"num_replicas": 1, "autoscaling_config": None, "ray_actor_options": {"num_cpus": 0.1}}
        config = LLMConfig(
            model_loading_config={"model_id": "tiny", "model_source": model},
            accelerator_config={"kind": "cpu"},
            placement_group_config={"bundles": [{"CPU": 0.1}]},
            engine_kwargs=json.loads(engine_json),
            deployment_config={"num_replicas": 1, "ray_actor_options": {"num_cpus": 0.1}},
            runtime_env={"env_vars": json.loads(env_json)},
        )
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            said: dict[str, Any] = {}
            if line.strip() == "start":
                begun_s = time.monotonic()
                app = build_openai_app({"llm_configs": [config], "ingress_deployment_config": none})
                serve.run(app, name=APP, route_prefix="/", blocking=False)
                said["running_s"] = time.monotonic() - begun_s
                _answered(port)
                said["answered_s"] = time.monotonic() - begun_s
            else:
                serve.delete(APP)
            print(json.dumps(said), file=answers, flush=True)


def _answered(port: int) -> None:
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", data=body, headers={"content-type": "application/json"}
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                response.read()
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
