"""What an engine's processes said last before they failed: the cause, where its front only says "see above".

vLLM's front learns no more of a process that did not start than that it did not; the exception is in that process, and
in its log. So each of these processes notes what it logs as an error in memory that it shares with the replica: a file
without a name, of which the path is in the environment, and which is gone with the replica.

Not guaranteed: a process that is killed says nothing. Linux alone.
"""

import json
import logging
import os
import re
import signal
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass

from pydantic import ValidationError

VARIABLE = "EBBTIDE_ENGINE_FAULTS"
LOGGER = "vllm"  # whose records are noted, and of all below it
LONGEST = 300  # characters of one line
MOST_BYTES = 256 << 10  # noted in all: a process that logs errors for ever must not fill the memory
POINTS_ELSEWHERE = re.compile(r"root cause|see (the )?stack trace|EngineDead", re.IGNORECASE)
"""Words by which vLLM's errors say that another one came before them."""
ENDED = re.compile(r"Failed core proc\(s\): \{[^}]*?: (-?\d+)")


@dataclass(frozen=True, slots=True)
class Fault:
    """One record of an error.

    Attributes:
        said: the log's own line.
        error: the exception in one line; "": there was none.
    """

    said: str
    error: str = ""


class FaultRecord:
    """Of the engine of this process; made before its processes are."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._file = os.memfd_create("ebbtide-engine-faults")
        environ[VARIABLE] = f"/proc/{os.getpid()}/fd/{self._file}"

    def cause(self, error: BaseException) -> str:
        """Why the engine failed, in one line: the first exception of its processes, else the last error they logged,
        else how they ended, else ``error``.
        """
        found = [one for one in self._faults() if not POINTS_ELSEWHERE.search(one.error or one.said)]
        raised = [one for one in found if one.error]
        if raised:
            return raised[0].error
        own = one_line(error)
        if not POINTS_ELSEWHERE.search(own):
            return own
        if found:
            return found[-1].said
        return _ended(str(error)) or own

    def _faults(self) -> list[Fault]:
        found = []
        for line in os.pread(self._file, MOST_BYTES, 0).splitlines():
            try:
                found.append(Fault(**json.loads(line)))
            except (ValueError, TypeError):  # a process was killed while it wrote
                continue
        return found

    def close(self) -> None:
        """Forget all; processes that are left note nothing any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def note_errors(environ: Mapping[str, str]) -> None:
    """Note what this process logs as errors, if it belongs to an engine that keeps a record. May be repeated."""
    logger = logging.getLogger(LOGGER)
    if VARIABLE in environ and not any(isinstance(one, _Noting) for one in logger.handlers):
        logger.addHandler(_Noting(environ))


class _Noting(logging.Handler):
    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(logging.ERROR)
        self._environ = environ

    def emit(self, record: logging.LogRecord) -> None:
        """Append; whatever goes wrong here, the engine's own failure is more important."""
        try:
            raised = record.exc_info[1] if record.exc_info else None
            fault = Fault(_cut(record.getMessage()), "" if raised is None else one_line(raised))
            file = os.open(self._environ[VARIABLE], os.O_WRONLY | os.O_APPEND)
            try:
                if os.fstat(file).st_size < MOST_BYTES:
                    os.write(file, json.dumps(asdict(fault)).encode() + b"\n")
            finally:
                os.close(file)
        except Exception:  # noqa: BLE001 - outermost: a logging handler never raises
            return


def one_line(error: BaseException) -> str:
    """An exception as one line: its type, and the first line of what it says; pydantic's without its frame."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return _cut(f"{error.title}{f'.{place}' if place else ''}: {first['msg'].removeprefix('Value error, ')}")
    return _cut(f"{type(error).__name__}: {error}".removesuffix(": "))


def _cut(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def _ended(text: str) -> str:
    """How the engine's process ended, where its front knows no more; empty: it does not know that either."""
    found = ENDED.search(text)
    if found is None:
        return ""
    code = int(found[1])
    if code >= 0:
        return f"its engine process ended with exit code {code} and said nothing"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    short = ": perhaps the machine was out of memory" if -code == signal.SIGKILL else ""
    return f"its engine process was killed by {name}{short}"
