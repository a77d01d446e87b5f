"""Keeps the arbiter's ``/metrics`` open as the file in force says, and tells Prometheus where all our ports are.

Level-triggered, like all else: each tick says what ought to be, a thread of its own does it, and a failure (a taken
port, an unreadable token file) is shown in ``status`` and tried again. The loop never waits for it.
"""

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ebbtide.config.sections.metrics_section import MetricsSection
from ebbtide.telemetry.metrics_server import MetricsServer
from ebbtide.telemetry.registry import Metrics
from ebbtide.telemetry.scrape_targets import FILE_NAME, Target, write_targets

RETRY_S = 5.0  # after a failure: a port that somebody else has may be free by then
TOKEN_LEAST = 16  # characters: 128 bits in hex would be 32, in base64 22

log = logging.getLogger(__name__)


class MetricsExporter:
    """One arbiter's open port and targets file. ``url`` and ``trouble`` may be read from any thread."""

    def __init__(self, metrics: Metrics, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Args:
        metrics: what is shown.
        folder: node-local, for the targets file.
        clock: monotonic seconds.
        """
        self.url = ""
        self.trouble = ""
        self._metrics, self._clock = metrics, clock
        self._pool = ""
        self._file = folder / FILE_NAME
        self._server: MetricsServer | None = None
        self._opened: MetricsSection | None = None
        self._written: frozenset[Target] | None = None
        self._work: Future[None] | None = None
        self._not_before_s = 0.0
        self._thread = ThreadPoolExecutor(1, "metrics-door")

    def keep(self, section: MetricsSection, pool: str, gateways: Iterable[str]) -> None:
        """What ought to be, now; never waits.

        Args:
            section: of the file in force.
            pool: its name, a label of every target.
            gateways: URLs of those that were heard lately.
        """
        if self._work is not None and not self._work.done():
            return
        self._pool = pool
        targets = frozenset(Target("gateway", url, self._pool) for url in gateways if url)
        if self._agrees(section, targets) or self._clock() < self._not_before_s:
            return
        self._work = self._thread.submit(self._bring_about, section, targets)

    def status(self) -> dict[str, Any]:
        """For ``ebbtide status``."""
        return {"url": self.url, "targets_file": str(self._file), "trouble": self.trouble}

    def close(self) -> None:
        """The pool is taken down."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _agrees(self, section: MetricsSection, targets: frozenset[Target]) -> bool:
        return self._opened == section and self._written == self._with_ours(targets)

    def _with_ours(self, targets: frozenset[Target]) -> frozenset[Target]:
        return targets | {Target("arbiter", self.url, self._pool)} if self.url else targets

    def _bring_about(self, section: MetricsSection, targets: frozenset[Target]) -> None:
        try:
            if self._opened != section:
                self._open(section)
            wanted = self._with_ours(targets)
            if self._written != wanted:
                write_targets(self._file, wanted)
                self._written = wanted
            self.trouble = ""
        except (OSError, ValueError) as error:
            self._not_before_s = self._clock() + RETRY_S
            if str(error) != self.trouble:
                log.warning("metrics: %s", error)
            self.trouble = str(error)

    def _open(self, section: MetricsSection) -> None:
        self._shut()
        if section.enabled:
            token = _token(section.token_file)
            try:
                self._server = MetricsServer(self._metrics, host=section.host, port=section.port, token=token)
            except OSError as error:
                where = f"{section.host}:{section.port}"
                raise OSError(f"metrics cannot be shown on {where}: {error.strerror}; see metrics.port") from error
            self.url = self._server.url
        self._opened = section

    def _shut(self) -> None:
        self._opened, self.url = None, ""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _close(self) -> None:
        self._shut()
        self._file.unlink(missing_ok=True)


def _token(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        token = file.read_text().strip()
    except OSError as error:
        raise OSError(f"metrics.token_file {file} cannot be read: {error.strerror}") from error
    if len(token) < TOKEN_LEAST or not token.isascii():
        raise ValueError(f"metrics.token_file {file} holds no token of {TOKEN_LEAST} ASCII characters or more")
    return token
