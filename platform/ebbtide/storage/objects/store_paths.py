"""Where things lie below the store's root.

::

    store.json                      what this directory is
    objects/<id>/                   immutable: manifest.json, COMMIT, files, and <file>.idx beside the larger ones
    refs/<name>/<tag>               small JSON that names an object; replaced by rename
    incoming/<attempt>/             work directories, laid out like the object they become
    leases/                         who is at work with what
    trash/<id>.<random>/            taken out of the store, being removed
    quarantine/<id>.<random>/       found damaged, kept for a while for repair

All on one filesystem, since they are renamed into one another. Directories have mode 0700 and files 0600: checkpoints
hold secrets.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.names import Attempt, ObjectId, RefName, Tag, ref_directory


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The places of one store."""

    root: Path

    @property
    def marker(self) -> Path:
        return self.root / "store.json"

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    @property
    def refs(self) -> Path:
        return self.root / "refs"

    @property
    def incoming(self) -> Path:
        return self.root / "incoming"

    @property
    def leases(self) -> Path:
        return self.root / "leases"

    @property
    def trash(self) -> Path:
        return self.root / "trash"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    @property
    def directories(self) -> tuple[Path, ...]:
        """All of them."""
        return (self.objects, self.refs, self.incoming, self.leases, self.trash, self.quarantine)

    def object(self, object_id: ObjectId) -> Path:
        """An object's directory."""
        return self.objects / object_id

    def ref(self, name: RefName, tag: Tag) -> Path:
        """A ref's file."""
        return self.refs / ref_directory(name) / tag

    def work(self, attempt: Attempt) -> Path:
        """A work directory."""
        return self.incoming / attempt

    def aside(self, place: Path, object_id: str) -> Path:
        """A free name for an object below ``trash`` or ``quarantine``."""
        return place / f"{object_id}.{secrets.token_hex(8)}"
