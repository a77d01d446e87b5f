"""Names from outside, checked so that none can lead out of the store's directory or be mistaken for another.

Only ASCII letters, digits and ``_ . + = , @ -`` pass, and the first character is a letter, a digit or ``_``: no path
is absolute, climbs, hides, or looks like an option; no two names differ only in how Unicode writes them. A ref's name
becomes one directory, its ``/`` written ``%2F`` (``%`` itself never passes), so that a name may begin with another.

Names that differ only in case are different here but may be the same file on some filesystems (CIFS, case-folding
directories): whoever makes names in one directory refuses them, see `case_collision`.
"""

import re
from collections.abc import Iterable
from typing import NewType

from ebbtide.storage.errors import Refused
from ebbtide.storage.foreign_names import is_foreign

ObjectId = NewType("ObjectId", str)  # 64 hexadecimal digits: a SHA-256
RefName = NewType("RefName", str)  # what a ref is called: "org/model", "train/run-7/e3"
Tag = NewType("Tag", str)  # which of that name: "latest", "step-100"
FileName = NewType("FileName", str)  # a file of an object, relative to it: "tp2/rank0.safetensors"
Attempt = NewType("Attempt", str)  # one try to publish something: the name of its work directory

MANIFEST = FileName("manifest.json")
COMMIT = FileName("COMMIT")
INDEX_SUFFIX = ".idx"

_COMPONENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=,@-]*")
_OBJECT_ID = re.compile(r"[0-9a-f]{64}")
# A file name may have 255 bytes (NAME_MAX of every filesystem at hand); the rest is for a suffix and temporary names.
MAX_COMPONENT = 180
MAX_REF_NAME = 180
MAX_DEPTH = 8  # of "/" in a name: compile caches have six
MAX_FILE_NAME = 512


def object_id(text: str) -> ObjectId:
    """Check that ``text`` can be an object's id.

    Raises:
        Refused: it is not 64 lower-case hexadecimal digits.
    """
    if not _OBJECT_ID.fullmatch(text):  # guard: an object id is 64 hexadecimal digits
        raise Refused(f"{_shown(text)} is no object id: 64 hexadecimal digits (0-9, a-f) are expected")
    return ObjectId(text)


def ref_name(text: str) -> RefName:
    """Check what a ref shall be called, such as ``org/model``.

    Raises:
        Refused: with the reason.
    """
    _check_path(text, "name", MAX_REF_NAME)
    _check_is_ours(ref_directory(RefName(text)), text, "name")
    if len(ref_directory(RefName(text))) > 255:
        raise Refused(f"the name {_shown(text)} is too long")
    return RefName(text)


def tag(text: str) -> Tag:
    """Check a ref's tag, such as ``latest``.

    Raises:
        Refused: with the reason.
    """
    _check_component(text, text, "tag")
    _check_is_ours(text, text, "tag")
    return Tag(text)


def attempt(text: str) -> Attempt:
    """Check the name of a work directory.

    Raises:
        Refused: with the reason.
    """
    _check_component(text, text, "attempt")
    _check_is_ours(text, text, "attempt")
    return Attempt(text)


def file_name(text: str) -> FileName:
    """Check the name of a file inside an object, such as ``config.json`` or ``tp2/rank0.safetensors``.

    Raises:
        Refused: with the reason; also for names that the store keeps for itself (manifest, commit, indexes).
    """
    _check_path(text, "file name", MAX_FILE_NAME)  # guard: a manifest's file names stay inside its directory
    folded = text.casefold()
    # guard: the store's own file names are its own
    if folded.endswith(INDEX_SUFFIX) or folded in (MANIFEST.casefold(), COMMIT.casefold()):
        raise Refused(f"the file name {_shown(text)} is kept for the store itself; rename the file")
    return FileName(text)


def index_name(name: FileName) -> str:
    """The name of a file's index of chunk hashes, beside it."""
    return name + INDEX_SUFFIX


def ref_directory(name: RefName) -> str:
    """The one directory below ``refs/`` that holds the tags of ``name``."""
    return name.replace("/", "%2F")


def name_of_directory(directory: str) -> RefName | None:
    """The other way round; None for a directory that no name gives."""
    try:
        return ref_name(directory.replace("%2F", "/"))
    except Refused:
        return None


def case_collision(names: Iterable[str]) -> tuple[str, str] | None:
    """Two of ``names`` that some filesystems take for one, or None."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            return other, name
    return None


def _check_path(text: str, what: str, longest: int) -> None:
    if len(text) > longest:
        raise Refused(f"the {what} {_shown(text)} is too long: {len(text)} characters, at most {longest}")
    components = text.split("/")
    if len(components) > MAX_DEPTH:  # guard: a name is not nested without end
        raise Refused(f"the {what} {_shown(text)} is nested too deeply: at most {MAX_DEPTH} parts")
    for component in components:
        _check_component(component, text, what)


def _check_is_ours(entry: str, text: str, what: str) -> None:
    if is_foreign(entry):  # guard: what other systems leave in a folder has no name of ours
        raise Refused(f"the {what} {_shown(text)} cannot be used: other systems put files of that name into folders")


def _check_component(component: str, text: str, what: str) -> None:
    if not component:
        raise Refused(f"the {what} {_shown(text)} is empty, absolute, or has an empty part between two '/'")
    if (
        not _COMPONENT.fullmatch(component)  # guard: a name stays in the store's directory
        or component.endswith(".")  # guard: a name does not end in a dot
    ):
        raise Refused(
            f"the {what} {_shown(text)} cannot be used: each part begins with a letter, a digit or '_', "
            "goes on with these or . + = , @ -, and does not end in '.'"
        )
    if len(component) > MAX_COMPONENT:  # guard: a name fits a directory entry
        raise Refused(f"the {what} {_shown(text)} is too long: at most {MAX_COMPONENT} characters in a part")


def _shown(text: str) -> str:
    """Readable and harmless in a terminal, however long and whatever is in it."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")
