"""The identity of a ledger: a random name, made with it and lost with it.

Lease epochs grow within one ledger. Whoever remembers an epoch beyond the arbiter's life (the slot locks do) remembers
the ledger with it: a pool whose ledger was made anew counts from 1 again, and must not be taken for a stale one.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

NAME = "identity"


def ledger_identity(directory: Path) -> str:
    """The identity of the ledger in ``directory``, made at the first call; of two callers at once both get the same.

    Raises:
        OSError: the directory cannot be read or written.
    """
    path = directory / NAME
    if not path.exists():
        draft = directory / f".{NAME}.{secrets.token_hex(4)}"
        try:
            with draft.open("w") as file:
                file.write(secrets.token_hex(8))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(draft, path)  # and not a rename: whoever comes second must not replace the first one's
        finally:
            draft.unlink(missing_ok=True)
    return path.read_text().strip()
