"""A digest of the code that makes and fills a model: the sources of its modules' classes and of their bases.

A version alone does not tell apart what somebody patched in place, or what a model brings along. Not covered: what
these files import; the engine's version stands for that.
"""

import hashlib
import sys
from pathlib import Path

from torch import nn

_OWN_VERSION = ("torch", "builtins", "abc", "typing")  # named by version elsewhere, or no code of a model's


def code_digest(model: nn.Module) -> str:
    """Equal for models whose classes have the same sources."""
    classes = {base for module in model.modules() for base in type(module).__mro__}
    modules = {cls.__module__ for cls in classes if cls.__module__.partition(".")[0] not in _OWN_VERSION}
    digest = hashlib.sha256("\n".join(sorted(f"{cls.__module__}.{cls.__qualname__}" for cls in classes)).encode())
    for name in sorted(modules):
        path = getattr(sys.modules.get(name), "__file__", None)
        digest.update(name.encode())
        if path is not None:
            digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
    return digest.hexdigest()
