"""What a lease in a store is on, as its name says. Pure."""

from ebbtide.storage.names import Attempt, ObjectId


def of_object(object_id: ObjectId) -> str:
    """The subject of a lease on an object."""
    return f"object-{object_id}"


def of_work(attempt: Attempt) -> str:
    """The subject of a lease on a work directory."""
    return f"work-{attempt}"
