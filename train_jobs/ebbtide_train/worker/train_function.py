"""The function that a job names as ``package.module:name``."""

import importlib
from collections.abc import Callable


def load_function(path: str) -> Callable[..., object]:
    """The object named by ``package.module:name``.

    Raises:
        ValueError: there is no such module or name.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{path!r} names no function: {error}; write package.module:function") from error
    assert callable(found), f"{path} is not callable"
    return found  # type: ignore[no-any-return]
