"""TLS by certificate files, which may be renewed while streams run.

A connection keeps the certificate that it was made with; new ones get the new. A renewed pair that does not fit or
cannot be read changes nothing: the old one goes on, and the log says so.
"""

import asyncio
import logging
import os
import ssl
import stat
from pathlib import Path

LOOK_EVERY_S = 1.0  # certificates are renewed days before they expire
log = logging.getLogger(__name__)


class TlsFiles:
    """A certificate chain and its key, both PEM."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._seen: tuple[object, ...] = ()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        self.context.set_alpn_protocols(["http/1.1"])

    def load(self) -> None:
        """Use the pair for connections from now on.

        Raises:
            ValueError: it is not there, does not fit together, or others may read the key; nothing was changed.
        """
        seen = self._stamp()
        mode = stat.S_IMODE(self._key.stat().st_mode)
        if mode & 0o077:  # guard: a TLS key that others may read is refused
            raise ValueError(f"the TLS key {self._key} may be read by others (mode {mode:04o}): chmod 600 it")
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for context in (trial, self.context):  # the one in use only after it was seen to work
            try:
                # A passphrase cannot be typed here; without one given, OpenSSL would ask the terminal.
                context.load_cert_chain(self._cert, self._key, password="")
            except (OSError, ValueError) as error:
                raise ValueError(f"the TLS certificate {self._cert} with the key {self._key}: {error}") from error
        self._seen = seen

    async def reload_forever(self) -> None:
        """Load the pair again whenever a file has changed, until cancelled."""
        told = self._seen
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                seen = self._stamp()
                if seen not in (self._seen, told):
                    told = seen
                    self.load()
                    log.warning("TLS: new connections get the renewed certificate %s", self._cert)
            except ValueError as error:  # guard: a bad new certificate leaves the old one in use
                log.error("TLS: the last good certificate stays in use: %s", error)

    def _stamp(self) -> tuple[object, ...]:
        try:
            found = [os.stat(path) for path in (self._cert, self._key)]
        except OSError as error:
            raise ValueError(f"the TLS file {error.filename}: {error.strerror}") from error
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size, one.st_mode) for one in found)
