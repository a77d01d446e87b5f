"""What `vllm.engine` uses of vLLM and what differs from version to version. Importing this imports vLLM.

Raises `EngineRefused` on import where vLLM is outside the range.
"""

from typing import Any

import vllm

from ebbtide_serve.vllm_versions.supported import check

VERSION = check(vllm.__version__)

if VERSION >= (0, 29):
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.cli_args import FrontendArgs
else:
    from vllm.entrypoints.openai.api_server import init_app_state
    from vllm.entrypoints.openai.cli_args import FrontendArgs

if VERSION >= (0, 28):
    from vllm.entrypoints.serve import create_error_response
else:
    from vllm.entrypoints.serve.utils.error_response import create_error_response

if VERSION >= (0, 27):
    from vllm.exceptions import VLLMError

    _VLLM_ERRORS: tuple[type[Exception], ...] = (VLLMError,)
else:
    from vllm.exceptions import VLLMNotFoundError, VLLMUnprocessableEntityError, VLLMValidationError

    _VLLM_ERRORS = (VLLMValidationError, VLLMNotFoundError, VLLMUnprocessableEntityError)

__all__ = [
    "REQUEST_ERRORS",
    "VERSION",
    "FrontendArgs",
    "create_error_response",
    "init_app_state",
    "sleepy",
    "unfinished_requests",
]

# What vLLM's own HTTP server turns into an answer (entrypoints/serve/exception_handling/register.py; 0.26 and 0.27:
# entrypoints/serve/utils/server_utils.py).
REQUEST_ERRORS: tuple[type[Exception], ...] = (*_VLLM_ERRORS, ValueError, TypeError, OverflowError, NotImplementedError)


def unfinished_requests(llm: Any) -> int:
    """How many requests of an ``AsyncLLM`` have not ended."""
    if VERSION >= (0, 29):
        return int(llm.get_num_unfinished_requests())
    return int(llm.output_processor.get_num_unfinished_requests())


def sleepy(llm: Any) -> Any:
    """An ``AsyncLLM`` as `vllm.sleep_mode.SleepyEngine`."""
    return llm if VERSION >= (0, 27) else _WithoutCheckpointCalls(llm)


class _WithoutCheckpointCalls:
    """vLLM 0.26 has nothing to prepare before its process is checkpointed."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self.sleep, self.wake_up, self.collective_rpc = llm.sleep, llm.wake_up, llm.collective_rpc

    async def checkpoint_prepare(self) -> None:
        """Nothing."""

    async def checkpoint_restore(self) -> None:
        """Nothing."""
