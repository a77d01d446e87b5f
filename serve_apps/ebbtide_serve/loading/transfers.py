"""Reading a stored file into tensors, as traffic that users wait for."""

from collections.abc import Sequence

from ebbtide.storage.errors import Corrupt
from ebbtide.storage.rates import Admission
from ebbtide.storage.report import TransferReport
from ebbtide.storage.stored_object import StoredObject
from ebbtide.storage.transport import Pending, Range
from ebbtide_serve.loading.places import Scatter

NOTHING = TransferReport({}, 0.0)


def read_into(
    stored: StoredObject, name: str, ranges: Sequence[Range], scatters: Sequence[Scatter], admit: Admission
) -> TransferReport:
    """Read ranges of a file; each checked chunk goes to all of ``scatters``.

    Raises:
        Corrupt: bytes are not those that were published; none of their chunk reached a tensor.
        NotPublished, Superseded, TransferFailed: see `StoredObject.read_file`.
    """
    if not ranges:
        return NOTHING

    def consume(offset: int, memory: memoryview) -> Pending | None:
        admit(len(memory))
        begun: list[Pending] = []
        try:
            begun.extend(pending for one in scatters if (pending := one(offset, memory)) is not None)
        except BaseException:
            _All(begun).wait()  # the memory is lent again as soon as this is raised
            raise
        return _All(begun) if begun else None

    return stored.read_file(name, consume=consume, ranges=ranges)


def check_complete(stored: StoredObject, name: str, scatter: Scatter) -> None:
    """The other half of every read: nothing that was wanted is missing.

    Raises:
        Corrupt: something is.
    """
    if scatter.placed != scatter.wanted:
        what = f"{scatter.placed} of {scatter.wanted} bytes came of what was wanted of file {name}"
        raise Corrupt(what, stored.file(name).path)


class _All:
    """Several pieces of work on one chunk's memory."""

    def __init__(self, begun: Sequence[Pending]) -> None:
        self._begun = begun

    def wait(self) -> None:
        """See `Pending`."""
        for one in self._begun:
            one.wait()
