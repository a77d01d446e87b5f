"""What a user calls a model, and which object that is; and the name that a source gets if nobody gave one."""

import difflib
import re
from dataclasses import dataclass

from ebbtide.storage.errors import Corrupt, NotPublished, Refused
from ebbtide.storage.names import MAX_COMPONENT, ObjectId, RefName, Tag, object_id, ref_name, tag
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.refs import Ref

LATEST = "latest"
SHORT_ID = 12  # hexadecimal digits that are shown of an id
LEAST_ID = 8  # that are taken for one: 2^32 is far more than the objects of any store
# Where other parts of the platform keep names of their own.
RESERVED = ("train", "flat", "artefact", "jit")
_ID_PREFIX = re.compile(rf"[0-9a-f]{{{LEAST_ID},64}}")
_HUB_CACHE = re.compile(r"models--([^/]+)--([^/]+)/snapshots/[^/]+/?$")


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """A model of the store.

    Attributes:
        ref: by which it was found; None if by its id.
    """

    object: ObjectId
    ref: Ref | None

    def __str__(self) -> str:
        return str(self.ref) if self.ref else f"object {self.object[:SHORT_ID]}"


def split_ref(text: str) -> tuple[RefName, Tag]:
    """``name[:tag]``; the tag is `LATEST` if there is none.

    Raises:
        Refused: it cannot be a name.
    """
    name, colon, tag_text = text.rpartition(":")
    return (ref_name(name), tag(tag_text)) if colon else (ref_name(tag_text), tag(LATEST))


def find(store: ObjectStore, text: str) -> ModelQuery:
    """The model of a name, with or without a tag, of an id, or of the beginning of one.

    Raises:
        Refused: it cannot be a name, is the beginning of several ids, or names something else than a model.
        NotPublished: there is no such model; tells what there is.
        Corrupt: the ref, or the object's manifest, is damaged.
    """
    if len(text) == 64 and _ID_PREFIX.fullmatch(text):
        return _checked(store, ModelQuery(object_id(text), None))
    name, tag_text = split_ref(text)
    try:
        ref = store.refs.read(name, tag_text)
    except NotPublished as error:
        found = (
            [object_id for object_id in store.list_objects() if object_id.startswith(text)]
            if _ID_PREFIX.fullmatch(text)
            else []
        )
        if len(found) > 1:
            raise Refused(f"{text} is the beginning of {len(found)} objects: give more digits") from error
        if not found:
            raise NotPublished(f"{error}{_hint(store, name)}") from error
        return _checked(store, ModelQuery(found[0], None))
    return _checked(store, ModelQuery(ref.object, ref))


def default_name(where: str) -> str:
    """What a source is called if nobody says: its last part, made a name of; org/model for a download from a hub.

    Raises:
        Refused: nothing is left of it.
    """
    found = _HUB_CACHE.search(where)
    parts = found.groups() if found else (where.rpartition("://")[2].rstrip("/").rpartition("/")[2],)
    clean = [re.sub(r"[^A-Za-z0-9_.+=,@-]+", "-", part).strip("-.")[:MAX_COMPONENT] for part in parts]
    try:
        return ref_name("/".join(part.lstrip("+=,@.-") for part in clean))
    except Refused:
        raise Refused(f"no name can be made of {where!a}: give one with --name") from None


def check_is_free(name: RefName) -> RefName:
    """Raises Refused for a name that other parts of the platform keep for themselves."""
    first = name.partition("/")[0]
    if first.lower() in RESERVED:
        raise Refused(f"names that begin with {first!r} are kept for other things than models: take another")
    return name


def _checked(store: ObjectStore, wanted: ModelQuery) -> ModelQuery:
    """It is a model, as far as can be told: one whose manifest is damaged may be."""
    try:
        kind = store.manifest(wanted.object).kind
    except Corrupt:
        return wanted
    except NotPublished as error:
        if wanted.ref is None:
            raise
        raise NotPublished(f"{wanted.ref} names object {wanted.object}, which is not there: import it again") from error
    if kind is not Kind.MODEL:
        raise Refused(f"{wanted} is no model; it is of the kind {kind.value}")
    return wanted


def _hint(store: ObjectStore, name: str) -> str:
    close = difflib.get_close_matches(name, store.refs.names(), n=3)
    return f"; did you mean {' or '.join(close)}?" if close and name not in close else ""
