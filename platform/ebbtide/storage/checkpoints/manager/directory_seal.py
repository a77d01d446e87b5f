"""Making a work directory a whole object: what all ranks wrote is there, and nothing else; then manifest and COMMIT.

The order of syncs is that of ``publication``: files and their indexes were synced by whoever wrote them; then manifest,
COMMIT, and the directory. Only after that may it be renamed.
"""

import os
from pathlib import Path

from ebbtide.storage.errors import Refused
from ebbtide.storage.files.durable_files import Disk, telling
from ebbtide.storage.names import COMMIT, MANIFEST, FileName, index_name
from ebbtide.storage.objects.manifest import Manifest, commit_bytes
from ebbtide.storage.objects.object_contents import read_index


def seal_directory(work: Path, manifest: Manifest, disk: Disk) -> None:
    """Check what was staged, remove what does not belong, write manifest and COMMIT, and sync.

    Raises:
        Refused: a file is not there as it was staged.
        Corrupt: an index of chunk hashes is not that of its file.
        StorageError: the filesystem refused something.
    """
    for entry in manifest.files:
        try:
            found = (work / entry.name).stat(follow_symlinks=False).st_size
        except OSError as error:
            raise Refused(f"file {entry.name} is to be committed, but cannot be found in {work}") from error
        if found != entry.size_bytes:  # guard: the file of each rank has its length when it is committed
            raise Refused(f"file {entry.name} was written with {entry.size_bytes} bytes, and {work} has {found} of it")
        if entry.index is not None:
            # guard: the file of each rank has its index of hashes when it is committed
            read_index(work, manifest, entry)
    belong = {entry.name for entry in manifest.files}
    belong |= {index_name(FileName(entry.name)) for entry in manifest.files if entry.index}
    with telling("list", work):
        strays = [work / name for name in os.listdir(work) if name not in belong]
    for path in strays:
        disk.remove_tree(path)  # guard: what no rank wrote is not committed
    raw = manifest.to_bytes()
    disk.write(work / MANIFEST, raw)
    disk.write(work / COMMIT, commit_bytes(raw))
    disk.sync_directory(work)  # guard: names are durable before the rename
