"""Finding an engine by name.

By name and not by import, because importing vLLM takes 5 to 15 s, reads the environment while it does so, and must
not happen in the gateway, the arbiter or a test that uses a fake.
"""

import asyncio
import importlib
from collections.abc import Callable
from typing import cast

from ebbtide_serve.engine.fault_record import one_line
from ebbtide_serve.engine.permanent_errors import is_permanent
from ebbtide_serve.engine.port import Engine, EngineSettings
from ebbtide_serve.errors import EngineFailed, EngineRefused


async def make_engine(name: str, settings: EngineSettings) -> Engine:
    """Make the engine ``"module:Class"``, not started yet. Imports in a thread: the caller's loop goes on.

    Raises:
        EngineRefused: there is no such module or class, or it does not take the settings.
        EngineFailed: it does not import, for what may be this machine's fault.
    """
    module_name, _, class_name = name.partition(":")
    try:
        module = await asyncio.to_thread(importlib.import_module, module_name)
        factory = cast(Callable[[EngineSettings], Engine], getattr(module, class_name))
    except EngineFailed:
        raise
    # An engine of one's own may raise anything, here and when it is made.
    except Exception as error:
        raise _failed(error, f"engine {name!r} cannot be loaded: {one_line(error)}") from error
    try:
        return factory(settings)
    except EngineFailed:
        raise
    except Exception as error:
        raise _failed(error, one_line(error)) from error


def _failed(error: Exception, words: str) -> EngineFailed:
    return (EngineRefused if is_permanent(error) else EngineFailed)(words)
