"""An engine by its name: what of its making is permanent, and what may be this machine's fault."""

import sys
import types

import pytest

from ebbtide_serve.engine.factory import make_engine
from ebbtide_serve.engine.port import EngineSettings
from ebbtide_serve.errors import EngineFailed, EngineRefused
from ebbtide_serve.testing.process_engine import PROCESS_ENGINE, ProcessEngine

SETTINGS = EngineSettings("m", "/m", {})


def raises(error: Exception) -> str:
    """The name of an engine that raises so when it is made."""

    def make(settings: EngineSettings) -> None:
        raise error

    module = types.ModuleType("an_engine_of_ones_own")
    module.Engine = make  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    return "an_engine_of_ones_own:Engine"


async def test_it_is_made_by_its_name() -> None:
    assert isinstance(await make_engine(PROCESS_ENGINE, SETTINGS), ProcessEngine)


@pytest.mark.parametrize("name", ["no_such_module:Engine", "ebbtide_serve.testing.process_engine:NoSuchEngine"])
async def test_one_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(EngineRefused, match=f"engine '{name}' cannot be loaded: "):
        await make_engine(name, SETTINGS)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (ValueError("no such mode"), EngineRefused, "ValueError: no such mode"),
        (TypeError("unexpected keyword"), EngineRefused, "TypeError: unexpected keyword"),
        (MemoryError(), EngineFailed, "MemoryError"),
        (RuntimeError("CUDA error"), EngineFailed, "RuntimeError: CUDA error"),
        (EngineFailed("as it says"), EngineFailed, "as it says"),
        (EngineRefused("as it says"), EngineRefused, "as it says"),
    ],
)
async def test_what_it_raises_when_it_is_made(error: Exception, kind: type[EngineFailed], said: str) -> None:
    with pytest.raises(EngineFailed) as caught:
        await make_engine(raises(error), SETTINGS)
    assert type(caught.value) is kind and str(caught.value) == said
