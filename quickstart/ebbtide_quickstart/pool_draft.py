"""The text of a pool file to begin with, commented for a first reader. Pure."""

import json
import re
from dataclasses import dataclass

EXAMPLE_MODEL = "models/tiny"
EXAMPLE_ENTRYPOINT = "train:train"
ENDPOINT = "chat"
CODE = "code"  # the folder of the job's own sources

_TEMPLATE = """\
# A pool of GPUs that serves LLMs and trains. `ebbtide validate {file}` checks it, `ebbtide schema` has every key.
pool:
  name: {pool}
  slots: {slots}  # {slots_note}
  shared_dir: shared  # checkpoints, weights and the pool's ledger; on a cluster a directory that every node sees

gateway:
  port: {port}  # OpenAI-style requests go to http://localhost:{port}/v1

endpoints:
  - name: chat  # what a request names as its `model`
    model: {model}  # {model_note}
    replicas: {{min: 0, max: 4}}  # 0: starts with the first request; a max beyond the pool is only a wish
{engine}
jobs:
  - name: {job}
    entrypoint: {entrypoint}  # module:function
    working_dir: {working_dir}  # goes to the workers as it is
    args: {{steps: 100000}}  # what the function gets
    workers: {{min: 1, max: 8}}  # as many as there are free slots
    global_batch: 64  # samples of a step, at any number of workers
    micro_batch: 8  # of these at once on one GPU
"""
_ENGINE = """\
    engine: {enforce_eager: true}  # vLLM's own arguments; this one starts faster and answers slower
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDraft:
    """What differs from file to file.

    Attributes:
        file: as the user types it.
        slots: GPUs, or logical ones; None: all that are there.
        port: of the gateway, free now.
        model: None: the example that `ebbtide init` makes.
        entrypoint: None: the example that `ebbtide init` writes.
        on_gpus: whether this machine has any.
        from_hub: ``model`` is a model of the Hugging Face hub.
    """

    file: str = "pool.yaml"
    pool: str = "mine"
    slots: int | None = None
    port: int = 8000
    model: str | None = None
    entrypoint: str | None = None
    on_gpus: bool = False
    from_hub: bool = False


def pool_text(draft: PoolDraft) -> str:
    """The file as YAML."""
    all_slots = "all GPUs" if draft.on_gpus else "no GPU here: logical slots, counted by memory and cores"
    return _TEMPLATE.format(
        file=draft.file,
        pool=draft.pool,
        slots="all" if draft.slots is None else draft.slots,
        slots_note=all_slots if draft.slots is None else "GPUs" if draft.on_gpus else "logical slots: no GPU is here",
        port=draft.port,
        model=_scalar(EXAMPLE_MODEL if draft.model is None else draft.model),
        model_note=_model_note(draft),
        engine="" if draft.on_gpus else _ENGINE,
        job=job_name(draft.entrypoint),
        entrypoint=_scalar(EXAMPLE_ENTRYPOINT if draft.entrypoint is None else draft.entrypoint),
        working_dir=CODE if draft.entrypoint is None else ".",
    )


def job_name(entrypoint: str | None) -> str:
    """After its module, so that no other model inherits a job's checkpoints; the example is called pretrain."""
    if entrypoint is None:
        return "pretrain"
    module = entrypoint.partition(":")[0].rpartition(".")[2].lower().replace("_", "-").strip("-")
    return module if module not in ("", ENDPOINT) else f"{module}-job".strip("-")


def _model_note(draft: PoolDraft) -> str:
    if draft.from_hub:
        return "of the Hugging Face hub; `ebbtide up --import` brings it into the pool's store, once"
    if draft.model is not None:
        return "a directory with config.json, tokenizer.json and *.safetensors"
    return "small and random, it answers nonsense; put your own directory here"


def _scalar(text: str) -> str:
    """``text`` as a YAML scalar; a JSON string is one, where a plain one would mean something else."""
    return text if re.fullmatch(r"[A-Za-z/.~][\w/.-]*(:[\w/.-]+)?", text) else json.dumps(text, ensure_ascii=False)
