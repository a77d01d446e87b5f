"""Which failures of a start are permanent: another start with the same arguments ends alike, on every slot.

Asked only of what fails while an engine's arguments are read and its configuration is built, before anything is taken
of a GPU. Whatever may be the machine's is not permanent: memory, devices, files that cannot be read, other computers.
Pure.
"""

import errno
import re
from collections.abc import Iterator

from pydantic import ValidationError

PERMANENT: tuple[type[BaseException], ...] = (
    ValueError,  # pydantic's ValidationError and json's JSONDecodeError too
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    NotImplementedError,
    ImportError,
    SyntaxError,
)
BY_NAME = frozenset({"huggingface_hub.errors.StrictDataclassError"})
"""Of packages that are not imported here: a field of config.json has a value of a wrong type."""
WRONG_PATH = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
"""Of an OSError: the path is wrong. Of other numbers it is the machine."""
OF_THE_MACHINE = re.compile(
    # vLLM 0.29: "the number of available GPUs (1) in this node" (config/parallel.py), "not supported for the current
    # GPU. Minimum capability: 80" (config/vllm.py), "not supported on current platform" (config/model.py).
    r"\bGPUs?\b|\bdevices?\b|\bcapability\b|\bcurrent platform\b|\bplatforms\b|\bdrivers?\b"
    # vLLM 0.29: "Free memory on device ... is less than desired", "No available memory for the cache blocks".
    r"|\b(free|available|out of|insufficient|not enough) memory\b"
    r"|cannot open shared object file|address already in use|timed? ?out\b|\bconnect(ion)?\b",
    re.IGNORECASE,
)
"""In what vLLM raises as a ValueError, or Python as an ImportError, and that may be otherwise on another slot."""


def is_permanent(error: BaseException) -> bool:
    """Whether ``error``, and all that it was raised from, is of a kind that no slot and no later try can change."""
    return all(_is_permanent(one) for one in _chain(error))


def _is_permanent(error: BaseException) -> bool:
    if type(error) is OSError and error.errno is None:  # transformers': "... is not a valid JSON file"
        known = True
    elif isinstance(error, OSError):
        known = error.errno in WRONG_PATH
    else:
        known = isinstance(error, PERMANENT) or any(_name(kind) in BY_NAME for kind in type(error).__mro__)
    return known and not OF_THE_MACHINE.search(_said(error))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _said(error: BaseException) -> str:
    """Without the arguments that pydantic quotes."""
    if isinstance(error, ValidationError):
        return "; ".join(one["msg"] for one in error.errors(include_url=False, include_input=False))
    return str(error)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """It and what it came of, as a traceback shows them."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        yield now
        now = now.__cause__ or (None if now.__suppress_context__ else now.__context__)
