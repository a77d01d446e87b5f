"""The author's train function: given as such, or named as ``package.module:name``."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ray import cloudpickle

from ebbtide_train.session.errors import SessionMisuse
from ebbtide_train.worker.job_plan import JobPlan


def train_function(plan: JobPlan) -> Callable[[Mapping[str, Any]], object]:
    """That of a job, to be called with its args.

    Raises:
        ValueError: there is no such module or name.
        SessionMisuse: it cannot be called with one mapping.
        Exception: whatever importing its module raises.
    """
    found: Callable[[Mapping[str, Any]], object]
    if plan.train is not None:
        found = cloudpickle.loads(plan.train)
    else:
        working_dir = plan.section.working_dir
        if working_dir is not None and str(working_dir) not in sys.path:
            sys.path.insert(0, str(working_dir))
        found = load_function(plan.section.entrypoint)
    _must_take_args(found)
    return found


def load_function(path: str) -> Callable[..., object]:
    """The object named by ``package.module:name``.

    Raises:
        ValueError: there is no such module or name.
        Exception: whatever importing the module raises.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports one that is not
        raise ValueError(f"{path!r} names no function: {error}; write package.module:function") from error
    except AttributeError as error:
        if getattr(error, "obj", None) is not sys.modules.get(module):
            raise  # raised while the module was imported
        raise ValueError(f"{path!r} names no function: {error}; write package.module:function") from error
    if not callable(found):
        raise ValueError(f"{path!r} names no function but a {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _must_take_args(function: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some built in C nothing is known
        return
    try:
        signature.bind({})
    except TypeError:
        name = getattr(function, "__name__", "train")
        given = signature.replace(return_annotation=inspect.Signature.empty)
        raise SessionMisuse(
            f"{name}{given} cannot be called with the job's args alone: write `def {name}(args):`, args is a mapping"
        ) from None
