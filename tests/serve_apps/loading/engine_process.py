"""Starts vLLM engines one after the other in one process, and tells what they said: ``engine_process.py '<json>'``.

Prints one JSON object a line for each engine of ``runs``. Not a test itself. Before them, each of ``programs`` runs in
a fork that has vLLM imported: a program's text, and its ``argument``.

Each run has ``name``, ``format``, ``extra``, ``model`` and ``then``, a list of ``publish`` (the flat form), ``reload``
and ``damage`` (a byte of the newest flat form).
"""

import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

PROMPTS = ["def main():\n", "import sys\nclass A:"]


def main() -> None:
    """Run them all."""
    told = json.loads(sys.argv[1])
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process; ranks of a tp in processes of their own
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": told["cache_dir"],
    }
    for code, argument in told.get("programs", ()):
        _in_a_fork(code, argument)
    for run in told["runs"]:
        print(json.dumps({"name": run["name"]} | _run(told, run)), flush=True)


def _in_a_fork(code: str, argument: object) -> None:
    """What a program changes is not seen by the next, nor by the engines."""
    import vllm.model_executor.model_loader.default_loader
    import vllm.v1.worker.cpu_worker
    import vllm.v1.worker.gpu_worker  # noqa: F401 - once for all forks

    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        ended = 1
        try:
            exec(code, {"argument": argument})
            ended = 0
        except BaseException:  # noqa: BLE001 - the outermost of a process
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(ended)
    assert os.waitpid(child, 0)[1] == 0, "a program failed"


def _run(told: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM

    from ebbtide_serve.loading.start_record import RECORD

    RECORD.__init__()  # type: ignore[misc] # one process stands for several starts
    llm = LLM(
        model=run["model"],
        load_format=run["format"],
        model_loader_extra_config=run["extra"],
        tensor_parallel_size=told["tp"],
        distributed_executor_backend="mp" if told["tp"] > 1 else "uni",
        worker_extension_cls="ebbtide_serve.vllm.worker_calls.LoadCalls",
        max_model_len=128,
        max_num_seqs=2,
        max_num_batched_tokens=128,
        kv_cache_memory_bytes=16 << 20,
        enforce_eager=True,
        seed=0,
    )

    found: dict[str, Any] = {"said": _said(llm), "records": llm.collective_rpc("ebbtide_start_record")}
    found["state"] = llm.collective_rpc("ebbtide_flat_state")
    for act in run.get("then", ()):
        if act == "reload":
            llm.collective_rpc("reload_weights")
            found["reloaded"] = _said(llm)
        elif act == "publish":
            found["published"] = _publish(Path(run["extra"]["store"]), llm)
        else:
            _damage(Path(run["extra"]["store"]))
    del llm
    gc.collect()
    return found


def _said(llm: Any) -> list[Any]:
    from vllm import SamplingParams

    how = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    return [
        [list(one.outputs[0].token_ids), [next(iter(each.values())).logprob for each in one.outputs[0].logprobs]]
        for one in llm.generate(PROMPTS, how, use_tqdm=False)
    ]


def _publish(root: Path, llm: Any) -> list[str | None]:
    from ebbtide_serve.loading.flat.publishing import publish_flat
    from ebbtide_serve.loading.reading.process_store import process_store

    outcome = publish_flat(process_store(root).store, lambda method, *args: llm.collective_rpc(method, args=args))
    return [outcome.object, outcome.why]


def _damage(root: Path) -> None:
    newest = max(root.glob("objects/*/tp*/rank0.safetensors"), key=lambda path: path.stat().st_mtime)
    with newest.open("r+b") as file:
        file.seek(newest.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


if __name__ == "__main__":
    main()
