"""Finding an engine by name.

By name and not by import, because importing vLLM takes 5 to 15 s, reads the environment while it does so, and must
not happen in the gateway, the arbiter or a test that uses a fake.
"""

import asyncio
import importlib
from collections.abc import Callable
from typing import cast

from ebbtide_serve.engine.port import Engine, EngineSettings
from ebbtide_serve.errors import EngineFailed


async def make_engine(name: str, settings: EngineSettings) -> Engine:
    """Make the engine ``"module:Class"``, not started yet. Imports in a thread: the caller's loop goes on.

    Raises:
        EngineFailed: there is no such module or class, or it does not import.
    """
    module_name, _, class_name = name.partition(":")
    try:
        module = await asyncio.to_thread(importlib.import_module, module_name)
        factory = cast(Callable[[EngineSettings], Engine], getattr(module, class_name))
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise EngineFailed(f"engine {name!r} cannot be loaded: {error}") from error
    return factory(settings)
