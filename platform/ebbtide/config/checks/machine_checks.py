"""The second look at a valid file: does this machine have what the file names? Nothing is changed by looking.

Used by ``validate`` and ``up``. Every node must have the same model directories; only this one is looked at.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ebbtide.config.checks.entrypoint import entrypoint_fault
from ebbtide.config.checks.hub_models import with_hub_models
from ebbtide.config.checks.secret_digest import secret_sha256
from ebbtide.config.errors import ConfigErrors, ConfigProblem, SecretUnavailable
from ebbtide.config.finding import Finding
from ebbtide.config.loading.pool_file_loader import LoadedFile
from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.scalars import is_stored_model
from ebbtide.system.directory_check import directory_fault


def check(loaded: LoadedFile, *, environ: Mapping[str, str], starting: bool = False) -> None:
    """Look at everything outside the file that it names.

    Args:
        loaded: a file that is valid by itself.
        environ: where secrets given by ``env`` are looked up.
        starting: a pool is to be started from the file, so it must describe one.

    Raises:
        ConfigErrors: something is missing or broken; holds every problem, with its line.
    """
    problems = world_problems(loaded, environ=environ, starting=starting)
    if problems:
        raise ConfigErrors(problems)


def world_problems(loaded: LoadedFile, *, environ: Mapping[str, str], starting: bool = False) -> list[ConfigProblem]:
    """Like :func:`check`, and returns the problems."""
    config = with_hub_models(loaded).config
    found = [
        *_shared_dir(config, starting),
        *_tls(config),
        *_models(config),
        *_entrypoints(config),
        *_secrets(config, environ),
    ]
    return [replace(loaded.problem(finding), scope="machine") for finding in found]


def model_fault(model: Path) -> str | None:
    """Why ``model`` is no directory that can be served, or None: weights, config.json and tokenizer.json are there."""
    if not model.is_dir():
        return f"{model} is no directory" if model.exists() else f"there is no directory {model}"
    try:
        if not any(file.stat().st_size > 8 for file in model.glob("*.safetensors")):  # 8 bytes: a header's length alone
            return f"{model} has no weights: expected *.safetensors"
    except OSError as error:
        return f"the weights in {model} cannot be read: {error.strerror}"
    for name in ("config.json", "tokenizer.json"):
        try:
            content = json.loads((model / name).read_bytes())
        except FileNotFoundError:
            return f"{model} has no {name}"
        except OSError as error:
            return f"{model / name} cannot be read: {error.strerror}"
        except (ValueError, RecursionError):
            return f"{model / name} is not JSON"
        if not isinstance(content, dict):
            return f"{model / name} is no JSON object"
    return None


def _shared_dir(config: PoolFile, starting: bool) -> Iterator[Finding]:
    if config.pool.shared_dir is None:
        if starting:
            yield Finding(
                ("pool",), "shared_dir is required to start a pool (this file only submits jobs to one)", at_key=True
            )
        return
    fault = directory_fault(config.pool.shared_dir)
    if fault:
        yield Finding(("pool", "shared_dir"), fault)


def _tls(config: PoolFile) -> Iterator[Finding]:
    tls = config.gateway.tls
    for name, path in (("cert", tls.cert), ("key", tls.key)) if tls else ():
        try:
            text, mode = path.read_bytes(), path.stat().st_mode & 0o777
        except OSError as error:
            yield Finding(("gateway", "tls", name), f"{path} cannot be read: {error.strerror}")
            continue
        if b"-----BEGIN " not in text:
            yield Finding(("gateway", "tls", name), f"{path} is no PEM file")
        elif name == "key" and mode & 0o077:
            yield Finding(
                ("gateway", "tls", name), f"{path} may be read by others (mode {mode:04o})", f"chmod 600 {path}"
            )


def _models(config: PoolFile) -> Iterator[Finding]:
    for index, endpoint in enumerate(config.endpoints):
        # What the store has is seen when a replica starts: the store is not asked here.
        elsewhere = endpoint.engine_class is not None or is_stored_model(endpoint.model)
        fault = None if elsewhere else model_fault(endpoint.model)
        if fault:
            yield Finding(("endpoints", index, "model"), fault)


def _entrypoints(config: PoolFile) -> Iterator[Finding]:
    for index, job in enumerate(config.jobs):
        if job.working_dir is not None and not job.working_dir.is_dir():
            yield Finding(("jobs", index, "working_dir"), f"there is no directory {job.working_dir}")
            continue
        fault = entrypoint_fault(job.entrypoint, working_dir=job.working_dir)
        if fault:
            yield Finding(("jobs", index, "entrypoint"), *fault)


def _secrets(config: PoolFile, environ: Mapping[str, str]) -> Iterator[Finding]:
    holders: dict[str, str] = {}
    for index, key in enumerate(config.keys):
        if key.revoked:
            continue
        try:
            digest = secret_sha256(key.secret, environ=environ)
        except SecretUnavailable as error:
            yield Finding(("keys", index, "secret"), str(error))
            continue
        if digest in holders:
            yield Finding(("keys", index, "secret"), f"it is the same secret as that of key {holders[digest]!r}")
        holders.setdefault(digest, key.name)
