"""What a cache of compiled code depends on, as one name. Pure.

Engines check their caches themselves, by keys of their own, and compile anew where these differ. So the fingerprint
need not be perfect: too coarse, and a restored cache is of no use; too fine, and it is not found. It must only keep
apart what could do harm, which is code for another machine: the GPU and its driver, and the CPU's instructions.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from ebbtide.storage.models.registry.derived_names import ARTEFACT

LAYOUT = "2"  # of the artefact's files
# Arguments that say where things are, what they are called or how they are shown; all others may change what is
# compiled.
WITHOUT_EFFECT = frozenset(
    {
        *("model", "tokenizer", "served_model_name", "load_format", "model_loader_extra_config", "download_dir"),
        *("worker_cls", "worker_extension_cls", "seed", "disable_log_stats", "enable_log_requests", "chat_template"),
    }
)
# Of the environment, what engines and compilers take for settings; of these, what only says where things are.
_SETTINGS = ("VLLM_", "TORCHINDUCTOR_", "TORCH_COMPILE", "TRITON_", "INDUCTOR_")
_PLACES = ("_DIR", "_ROOT", "_PATH", "_HOME", "_CACHE", "_HOST", "_PORT", "_IP")
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")


@dataclass(frozen=True)
class Fingerprint:
    """A name for everything that a cache depends on.

    Attributes:
        facts: what it was made of, for people and for the object's key; short texts.
    """

    facts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """64 hexadecimal digits."""
        return _digest(dict(self.facts))

    @property
    def ref_name(self) -> str:
        """What the artefact is called."""
        return ARTEFACT + self.digest[:32]


def fingerprint(
    *,
    machine: Mapping[str, str],
    versions: Mapping[str, str],
    model: str,
    tensor_parallel: int,
    args: Mapping[str, object],
    environ: Mapping[str, str],
) -> Fingerprint:
    """Make the name.

    Args:
        machine: of the CPU, and of the GPU and its driver.
        versions: of the engine and of all that compiles for it.
        model: names the model's content.
        tensor_parallel: number of ranks.
        args: of the engine.
        environ: of the engine's processes.
    """
    effective = {name: value for name, value in args.items() if name not in WITHOUT_EFFECT}
    settings = {name: value for name, value in environ.items() if _is_setting(name)}
    facts = {f"machine {name}": value for name, value in machine.items()}
    facts |= {f"version {name}": value for name, value in versions.items()}
    facts |= {
        "layout": LAYOUT,
        "model": model,
        "tensor parallel": str(tensor_parallel),
        "arguments": _digest(effective),
        "environment": _digest(settings),
    }
    return Fingerprint(facts)


def _is_setting(name: str) -> bool:
    return name.startswith(_SETTINGS) and not name.endswith(_PLACES) and not any(word in name for word in _SECRET)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
