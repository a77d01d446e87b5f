"""What this room knows of a pool file before a GPU is granted: the arguments of vLLM's engine, by name and by model.

The platform finds it by the entry point ``ebbtide.config_checks``. Imports neither vLLM nor Ray.
"""

import os
from collections.abc import Iterator

from ebbtide.client.seat_actuator import VLLM_ENGINE
from ebbtide.config.checks.room_checks import Look
from ebbtide.config.finding import Finding
from ebbtide.config.pool_file import PoolFile
from ebbtide_serve.model_checks.model_findings import model_findings
from ebbtide_serve.vllm_versions.engine_arguments import argument_findings
from ebbtide_serve.vllm_versions.known_facts import all_facts, default_facts, facts_here
from ebbtide_serve.vllm_versions.supported import installed_version, other_builds, why_not

INSTALL = "pip install 'ebbtide[gpu]' (on a machine without GPUs: 'ebbtide[cpu]')"


def engine_arguments(config: PoolFile, look: Look) -> Iterator[Finding]:
    """Names and values in `engine` of each endpoint that vLLM serves, whether its model's config.json goes with them,
    and whether this machine has a vLLM to serve it.

    ``look.offline``: by the default version's facts, else by those of the version that is installed here; no model is
    looked at.
    """
    served = [(index, one) for index, one in enumerate(config.endpoints) if one.engine_class in (None, VLLM_ENGINE)]
    if not served:
        return
    refusal = "" if look.offline else _refusal(config, look)
    if refusal:
        yield Finding(("endpoints", served[0][0]), refusal, at_key=True)
        return
    given = [(index, one) for index, one in served if one.engine]
    facts = None if not given else default_facts() if look.offline else facts_here(look.note)
    if facts is not None:
        for index, endpoint in given:
            yield from argument_findings(facts, endpoint.engine, ("endpoints", index, "engine"), others=all_facts)
    if look.offline:
        return
    for index, endpoint in served:
        loc = ("endpoints", index)
        yield from model_findings(endpoint, loc, shared_dir=config.pool.shared_dir, environ=os.environ)


def _refusal(config: PoolFile, look: Look) -> str:
    """Why the vLLM of this machine can serve nothing; empty where replicas may run on other machines, or it can."""
    if config.pool.ray_address is not None:
        return ""
    version = installed_version()
    if version is None:
        return f"no vLLM is installed on this machine: {INSTALL}" if look.starting else ""
    refusal = why_not(version) or other_builds()
    return f"on this machine, {refusal}" if refusal else ""
