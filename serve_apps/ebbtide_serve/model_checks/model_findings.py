"""What is wrong with an endpoint for what its model's config.json says."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ebbtide.config.finding import Finding, Loc
from ebbtide.config.sections.endpoint_section import EndpointSection
from ebbtide_serve.model_checks.config_files import ConfigFile, config_file
from ebbtide_serve.model_checks.config_rules import attention_heads, longest_context, names_no_model

ALLOW = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
CONFIG_ELSEWHERE = ("hf_config_path", "config_format")
"""Engine arguments by which config.json is another one, or not read."""


def model_findings(
    endpoint: EndpointSection, loc: Loc, *, shared_dir: Path | None, environ: Mapping[str, str]
) -> Iterator[Finding]:
    """What vLLM would refuse when a replica starts.

    Args:
        endpoint: served by vLLM.
        loc: of it.
        shared_dir: of the pool, with its store.
        environ: that replicas will have.
    """
    if any(endpoint.engine.get(name) not in (None, "auto", "hf") for name in CONFIG_ELSEWHERE):
        return
    file = config_file(endpoint.model, shared_dir)
    if file is None or not file.alone:
        return
    overrides = endpoint.engine.get("hf_overrides")
    if names_no_model(file.content, overrides):
        message = f"{file.path} names no model_type: vLLM cannot tell what model it is"
        yield Finding((*loc, "model"), message)
        return
    yield from _too_long(endpoint, (*loc, "engine", "max_model_len"), file, environ)
    heads, gpus = attention_heads(file.content, overrides), endpoint.gpus_per_replica
    if heads is not None and heads % gpus:
        fits = ", ".join(str(count) for count in range(1, gpus + 1) if heads % count == 0)
        message = f"the model has {heads} attention heads ({file.path}), which {gpus} GPUs cannot share"
        yield Finding((*loc, "gpus_per_replica"), message, f"vLLM takes {fits}")


def _too_long(endpoint: EndpointSection, loc: Loc, file: ConfigFile, environ: Mapping[str, str]) -> Iterator[Finding]:
    wanted = _whole(endpoint.engine.get("max_model_len"))
    limit = longest_context(file.content, endpoint.engine.get("hf_overrides"))
    allowed = environ.get(ALLOW, "").strip().lower() in ("1", "true")  # as vLLM reads it, vllm/envs.py
    if wanted is None or limit is None or wanted <= limit.tokens or allowed:
        return
    scaled = ", scaled" if limit.scaled else ""
    message = f"the model allows at most {limit.tokens:.0f} ({limit.key}{scaled} in {file.path}), is {wanted}"
    yield Finding(loc, message, f"or set {ALLOW}=1 if you know that it can do more")


def _whole(value: object) -> int | None:
    """As pydantic reads it; what is of a wrong type is told of elsewhere."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int):
        return value
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None
