"""Letting a process that has imported Ray take up another token: Ray reads the variables once, at import.

This is what Ray 2.60 does itself in ``ray._private.authentication.authentication_token_setup``; the one place where
we lean on it, asserted by ``tests/integration/test_ray_contract.py``.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def adopt(env: Mapping[str, str]) -> None:
    """Put ``env`` into force for this process and for Ray within it."""
    os.environ.update(env)
    raylet: Any = import_module("ray._raylet")  # a compiled module, its stub does not name these two
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
