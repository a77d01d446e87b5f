"""An image that is not needed any more goes: first it stops counting, then its bytes go."""

from pathlib import Path

from ebbtide.helper.criu.image import COMMIT, Manifest, check_owner, read_manifest
from ebbtide.helper.errors import Undone
from ebbtide.helper.journal.journal_state import Entry
from ebbtide.helper.journal.operation import Operation, Workplace
from ebbtide.helper.journal.workload_states import Op, Step
from ebbtide.helper.operations.image_paths import check_way
from ebbtide.helper.operations.image_revival import dumped_entry
from ebbtide.storage.errors import StorageError
from ebbtide.storage.files.durable_files import Disk


def check_discard(image_dir: Path) -> Manifest:
    """Refuse to remove what is no image of ours.

    Raises:
        Refused: it is not.
    """
    check_way(image_dir)
    check_owner(image_dir)
    return read_manifest(image_dir)


def discard(place: Workplace, image_dir: Path, manifest: Manifest, known: Entry | None) -> None:
    """Do it, after the check.

    Raises:
        Undone: it cannot be removed; it may be damaged now, and is brought back by nobody then.
    """
    entry = known or dumped_entry(manifest, image_dir)
    operation = Operation.on(place, Op.DISCARD, entry, image_dir=str(image_dir))
    try:
        remove_image(place.disk, image_dir)
    except StorageError as error:
        operation.note(Step.UNDONE, why=str(error))
        raise Undone(
            f"image {image_dir} cannot be removed: {error}", "mend the filesystem, remove the folder"
        ) from error
    operation.note(Step.DONE)


def remove_image(disk: Disk, image_dir: Path) -> None:
    """Remove what is left of an image, COMMIT first."""
    if image_dir.is_dir():
        disk.remove(image_dir / COMMIT)
        disk.remove_tree(image_dir)
