"""Making the load formats known to vLLM, in every process that it starts, at no cost to those that load nothing.

vLLM's registry lies in a module that is expensive to import (1.3 CPU s) and that most of its processes never need:
the front, and the short-lived one that looks at model classes. So nothing is imported here: the formats are registered
when that module is, by a finder that steps in for this one import and is gone afterwards.

Not guaranteed: the formats where a plug-in list (``VLLM_PLUGINS``) leaves us out.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Sequence
from types import ModuleType

from ebbtide_serve.loading.start_record import LOGGER

REGISTRY = "vllm.model_executor.model_loader"
FORMATS = "ebbtide_serve.vllm.load_formats"


def register_formats() -> None:
    """Register ``ebbtide`` and ``ebbtide_flat`` now, or as soon as vLLM's registry is imported. May be repeated."""
    if REGISTRY in sys.modules:
        _register()
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def _register() -> None:
    try:
        importlib.import_module(FORMATS).register()
    except Exception as error:  # noqa: BLE001 - outermost: somebody's own vLLM must start, whatever is wrong here
        logging.getLogger(LOGGER).warning("ebbtide's load formats are not available: %r", error)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds the registry once, as it would have been found without it, and registers when it has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name != REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(importlib.abc.Loader):
    """Another loader, and a registration after it."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """See `importlib.abc.Loader`."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        self._loader.exec_module(module)
        _register()

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)  # tools ask for the source of a module's code
