"""Moving what a process holds on its GPUs by an open operation, for tests: the product opens none (decision 023)."""

from collections.abc import Sequence

from ebbtide.snapshot.driver.errors import CopyFailed
from ebbtide.snapshot.driver.port import Copier, Extent, Operation


def carry(operation: Operation, copiers: Sequence[Copier]) -> tuple[int, ...]:
    """Move all extents and complete the operation.

    Args:
        operation: open; after an error it still is, and this may be called again with other copiers.
        copiers: the best first. The next one is tried, from the extent's beginning, when one fails.

    Returns:
        For each extent, which copier moved it.

    Raises:
        CopyFailed: no copier could move one of the extents; it says all that they said.
        DriverError: all is moved, and the driver did not take the completion.
    """
    ways = tuple(_move(operation, extent, copiers) for extent in operation.extents)
    operation.complete()
    return ways


def _move(operation: Operation, extent: Extent, copiers: Sequence[Copier]) -> int:
    said = []
    for way, copier in enumerate(copiers):
        try:
            copier(operation, extent)
            return way
        except CopyFailed as error:
            said.append(str(error))
    size = f"{extent.size_bytes} bytes of {extent.gpu}"
    raise CopyFailed(f"cannot move {size}: {'; '.join(said) or 'no way was given'}; the operation is still open")
