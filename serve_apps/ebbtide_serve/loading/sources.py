"""How the sources of one load were read: a model's own weights, and secondary ones that its code may ask for besides.

What is published under the id of the stored model must come from it. So one source that the engine read in its own way
makes the whole load one in the engine's own way, whatever else came from the store.
"""

from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide_serve.loading.rank_load import CHECKPOINT
from ebbtide_serve.loading.start_record import OWN


class SourcesRead:
    """Of one load."""

    def __init__(self) -> None:
        self._transfer: TransferReport | None = None
        self._own = False

    def from_store(self, transfer: TransferReport) -> None:
        """A source was read from the stored model, to its end."""
        self._transfer = transfer if self._transfer is None else self._transfer + transfer

    def by_own_loader(self) -> None:
        """A source is read by the engine's own loader."""
        self._own = True

    def outcome(self) -> tuple[str, TransferReport | None]:
        """Which way it was, see `rank_load.Ways`, and what came from the store."""
        return OWN if self._own or self._transfer is None else CHECKPOINT, self._transfer
