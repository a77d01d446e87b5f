"""An image as it lies on the disk: CRIU's files, a manifest with their hashes, and COMMIT, which is written last.

::

    IMAGE_DIR/images/*.img ...   as CRIU wrote them
    IMAGE_DIR/manifest.json      what it is of, where it can be brought back, length and xxh3-128 of each file
    IMAGE_DIR/COMMIT             the hash of the manifest

It is made in a folder of another name beside it, synced, and renamed: under its name it is whole or not there. It may
be copied anywhere as a whole (paths inside are relative); what is brought back belongs where the processes ran.

An image holds credentials: whoever can write one can start processes as anybody. So only images are used that belong
to the helper's own user, in folders with mode 0700.
"""

import hashlib
import os
import stat
from pathlib import Path
from typing import Literal

import xxhash
from pydantic import BaseModel, ConfigDict, ValidationError

from ebbtide.helper.criu.machine_profile import Machine
from ebbtide.helper.criu.needs import Needs
from ebbtide.helper.errors import Refused
from ebbtide.storage.errors import StorageError
from ebbtide.storage.files.durable_files import Disk, read_small

IMAGES, MANIFEST, COMMIT = "images", "manifest.json", "COMMIT"
_MANIFEST_LIMIT_BYTES = 64 << 20  # some 100 bytes for each file that the tree has mapped or open
_COMMIT_LIMIT_BYTES = 4096
_CHUNK_BYTES = 4 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
ELSE = "dump it again, or start it from a portable checkpoint"


class ImageFile(BaseModel):
    """One of CRIU's files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size_bytes: int
    xxh3: str


class Process(BaseModel):
    """One process of the tree: it gets its pid again. ``name`` is what it called itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    started: int
    name: str


class Manifest(BaseModel):
    """What an image is.

    Attributes:
        operation: id of the dump that made it.
        boot: in which the processes lived: their start times mean something only there.
        processes: root first.
        own_bytes: memory that the tree had for itself.
        image_bytes: length of all files.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    operation: str
    name: str
    generation: int
    uid: int
    created: str
    boot: str
    processes: tuple[Process, ...]
    own_bytes: int
    image_bytes: int
    machine: Machine
    needs: Needs
    files: tuple[ImageFile, ...]


def seal(work: Path, manifest: Manifest, disk: Disk) -> None:
    """Make all of a work folder durable, COMMIT last.

    Raises:
        StorageError: the disk is full or fails.
    """
    for file in manifest.files:
        disk.sync_file(work / IMAGES / file.name)
    disk.sync_directory(work / IMAGES)
    raw = manifest.model_dump_json(indent=1).encode()
    disk.write(work / MANIFEST, raw)
    disk.write(work / COMMIT, _commit(raw))
    disk.sync_directory(work)


def hashed_files(folder: Path) -> tuple[ImageFile, ...]:
    """All files in CRIU's folder, read and hashed.

    Raises:
        OSError: one cannot be read.
    """
    return tuple(_hashed(folder, name) for name in sorted(os.listdir(folder)))


def read_manifest(image_dir: Path) -> Manifest:
    """What a committed image says it is; its files are not looked at.

    Raises:
        Refused: there is none, or it is damaged or half written.
    """
    try:
        commit = read_small(image_dir / COMMIT, _COMMIT_LIMIT_BYTES)
        raw = read_small(image_dir / MANIFEST, _MANIFEST_LIMIT_BYTES)
    except FileNotFoundError as error:
        what = "half written: it was never committed" if image_dir.is_dir() else "not there"
        raise Refused(f"image {image_dir} is {what} ({Path(str(error.filename)).name} is missing)", ELSE) from error
    except (StorageError, ValueError) as error:
        raise Refused(f"image {image_dir} cannot be read: {error}", ELSE) from error
    if commit != _commit(raw):
        raise Refused(f"image {image_dir} is damaged: its manifest is not the one that was committed", ELSE)
    try:
        return Manifest.model_validate_json(raw)
    except ValidationError as error:
        raise Refused(f"image {image_dir} is of a version that this helper does not know", ELSE) from error


def check_owner(image_dir: Path) -> None:
    """Refuse an image that anybody but this user could have written.

    Raises:
        Refused: it is another's, a link, open to others, or not there.
    """
    for folder in (image_dir, image_dir / IMAGES):
        try:
            found = folder.lstat()
        except OSError as error:
            raise Refused(
                f"there is no image at {image_dir}: {error.strerror}", "name the folder of an image"
            ) from error
        if not stat.S_ISDIR(found.st_mode):
            raise Refused(f"{folder} is not a folder", "name the folder of an image, and no link")
        if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
            raise Refused(
                f"{folder} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}: "
                "others could have written what is in it",
                f"only images of user {os.geteuid()} with mode 700 are brought back: copy them as that user",
            )


def check_files(image_dir: Path, manifest: Manifest) -> None:
    """Read all of an image and compare.

    Raises:
        Refused: a file is missing, too many, or not what was written.
    """
    folder = image_dir / IMAGES
    try:
        names = sorted(os.listdir(folder))
        if names != [file.name for file in manifest.files]:
            odd = sorted(set(names) ^ {file.name for file in manifest.files})
            raise Refused(f"image {image_dir} is damaged: {', '.join(odd[:5])} missing or too many", ELSE)
        for one in manifest.files:
            if (folder / one.name).lstat().st_size != one.size_bytes:
                raise Refused(f"image {image_dir} is damaged: {one.name} does not have {one.size_bytes} bytes", ELSE)
        for one in manifest.files:
            if _hashed(folder, one.name) != one:
                raise Refused(f"image {image_dir} is damaged: {one.name} has other bytes than were written", ELSE)
    except OSError as error:
        raise Refused(f"image {image_dir} cannot be read: {error}", ELSE) from error


def _hashed(folder: Path, name: str) -> ImageFile:
    digest, size = xxhash.xxh3_128(), 0
    fd = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(fd, "rb", buffering=0) as file:
        while part := file.read(_CHUNK_BYTES):
            digest.update(part)
            size += len(part)
    return ImageFile(name=name, size_bytes=size, xxh3=digest.hexdigest())


def _commit(raw: bytes) -> bytes:
    return f"ebbtide image 1\nmanifest sha256 {hashlib.sha256(raw).hexdigest()}\n".encode()
