"""Handing a session to Ray's job service, and following it until it is over."""

import os
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ebbtide.client.cluster_record import ClusterRecord
from ebbtide_train.arbiter_client.link import Link
from ebbtide_train.arbiter_client.pool_connection import ADDRESS_VARIABLE
from ebbtide_train.submission.interactive_request import Request
from ebbtide_train.submission.stop_wait import stop_wait_env
from ebbtide_train.submission.training_job import LOOK_EVERY_S, OVER, JobService, Standing, Submitted, standing

FILE_NAME = "ebbtide-session.json"
_PIECE_BYTES = 1 << 20


def hand_over(service: JobService, request: Request, record: ClusterRecord) -> Submitted:
    """Submit one session.

    Raises:
        RuntimeError: Ray's job service refused or does not answer (its own error).
    """
    at_s = time.time()
    with tempfile.TemporaryDirectory(prefix="ebbtide-run-") as folder:
        (Path(folder) / FILE_NAME).write_text(request.model_dump_json(indent=2))
        submission_id = service.submit_job(
            entrypoint=f"python -m ebbtide_train.run_interactive {shlex.quote(FILE_NAME)}",
            submission_id=f"{request.name}-{secrets.token_hex(4)}",
            runtime_env={
                "working_dir": folder,
                "env_vars": {ADDRESS_VARIABLE: record.address, **stop_wait_env(request.grace_s)},
            },
            metadata={"ebbtide_job": request.name, "submitted_by": os.environ.get("USER", "unknown")},
        )
    return Submitted(request.name, submission_id, at_s)


def follow(
    service: JobService,
    link: Link,
    submitted: Submitted,
    output: Path,
    *,
    write: Callable[[bytes], object],
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Standing:
    """Write what the session prints, and say how it stands, until it is over.

    Args:
        output: its log on the shared directory; where that is not to be seen from here, nothing is written.
    """
    said, read_bytes = "", 0
    while True:
        now = standing(service, link, submitted)
        if now.line != said:
            said = now.line
            say(f"session {submitted.job}: {said}")
        read_bytes += _copy(output, read_bytes, write) if now.state != "submitted" else 0
        if now.state == "ended" or now.ray_status in OVER:
            read_bytes += _copy(output, read_bytes, write)
            return now
        sleep(LOOK_EVERY_S)


def _copy(output: Path, start: int, write: Callable[[bytes], object]) -> int:
    try:
        with output.open("rb") as file:
            file.seek(start)
            return sum(_each(file, write))
    except OSError:
        return 0


def _each(file: BinaryIO, write: Callable[[bytes], object]) -> list[int]:
    found = []
    while piece := file.read(_PIECE_BYTES):
        write(piece)
        found.append(len(piece))
    return found
