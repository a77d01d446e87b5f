"""What may be removed, and why: a pure function of what was found.

An object stays if a ref names it, somebody holds it, it is young, or an object that stays uses it. Everything else is
*trashed*: moved out of the way, so that nobody finds it any more. Only a later round, when every cache has forgotten
that it stood there, *removes* it, or *restores* it if a ref or a holder turned up meanwhile. A reader that comes just
then finds nothing for a while, and never wrong bytes.

In doubt it stays: as long as one ref, or the manifest of one object that stays, cannot be read, nobody knows what they
name, and no object is trashed or removed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ebbtide.storage.leases.lease_subjects import of_object, of_work
from ebbtide.storage.names import Attempt, ObjectId


class Fate(Enum):
    """What is to be done with something."""

    KEEP = "keep"
    TRASH = "trash"  # move it out of the way
    RESTORE = "restore"  # move it back
    REMOVE = "remove"  # for good


@dataclass(frozen=True, slots=True)
class Grace:
    """How old, in seconds, something must be that is to be trashed or removed.

    Attributes: object_s: an object without a ref. An hour: far longer than any cache of a network filesystem shows an
    old ref. work_s: a work directory without a living holder. A day: an import that was killed can go on until then.
    trash_s: what was trashed. Twice the 60 s for which NFS clients may show what was (acdirmax). quarantine_s: a
    damaged object. A week: time to repair it. temporary_s: a file of a replacement that was cut off. An hour: longer
    than any replacement takes. unused_s: a cache that nobody used (``models.derived_artifacts``). 30 days: it costs
    minutes to make again, once.
    """

    object_s: float = 3600.0
    work_s: float = 86400.0
    trash_s: float = 120.0
    quarantine_s: float = 7 * 86400.0
    temporary_s: float = 3600.0
    unused_s: float = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object in the store.

    Attributes:
        age_s: since it was published, found again by somebody who published the same, or got or lost a name.
        uses: what must live as long as it; None if its manifest cannot be read.
        problem: why not.
    """

    id: ObjectId
    path: Path
    age_s: float
    size_bytes: int
    uses: frozenset[ObjectId] | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FoundWork:
    """A work directory; ``age_s`` counts from the last change in it."""

    attempt: Attempt
    path: Path
    age_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FoundAside:
    """Something in the trash or the quarantine, or a temporary file; ``object`` is None for what is no object.

    Attributes:
        uses: what must live as long as it, should it be restored; None if its manifest cannot be read.
    """

    object: ObjectId | None
    path: Path
    age_s: float
    size_bytes: int
    uses: frozenset[ObjectId] | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found.

    Attributes:
        refs: the refs that name each object, as texts.
        bad_refs: refs that cannot be read, with the reasons.
        living: subjects of living leases.
        temporaries: files that are left of a replacement that was cut off, with age and size.
    """

    objects: tuple[FoundObject, ...] = ()
    work: tuple[FoundWork, ...] = ()
    trash: tuple[FoundAside, ...] = ()
    quarantine: tuple[FoundAside, ...] = ()
    refs: Mapping[ObjectId, tuple[str, ...]] = field(default_factory=dict)
    bad_refs: tuple[str, ...] = ()
    living: frozenset[str] = frozenset()
    temporaries: tuple[FoundAside, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What shall happen to one thing, and why."""

    path: Path
    fate: Fate
    why: str
    size_bytes: int
    object: ObjectId | None = None


def plan(survey: Survey, grace: Grace) -> tuple[Verdict, ...]:
    """What the collector would do; each thing that was found is in it once."""
    needed = _needed(survey, grace)
    doubt = _doubt(survey, needed)
    return (
        *_of_objects(survey, needed, doubt),
        *_of_work(survey, grace),
        *_of_trash(survey, grace, needed, doubt),
        *(
            _by_age(one, grace.quarantine_s, "damaged, and nobody repaired it", "time to repair it")
            for one in survey.quarantine
        ),
        *(
            _by_age(temporary, grace.temporary_s, "left of a replacement that was cut off", "maybe being written")
            for temporary in survey.temporaries
        ),
    )


def _needed(survey: Survey, grace: Grace) -> dict[ObjectId, str]:
    """The objects that must stay, with the reasons; also some that are not there."""
    needed: dict[ObjectId, str] = {}
    for target, names in survey.refs.items():
        # guard: an object that has a name stays
        needed[target] = f"named by {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
    uses = _uses(survey)
    for object_id in uses:
        if of_object(object_id) in survey.living:  # guard: an object that is held stays
            needed.setdefault(object_id, "somebody holds it")
    for one in survey.objects:
        if one.age_s < grace.object_s:  # guard: a young object stays
            needed.setdefault(one.id, f"published {one.age_s:.0f} s ago, less than {grace.object_s:g}")
    pending = list(needed)
    while pending:
        user = pending.pop()
        for used in uses.get(user) or ():
            if used not in needed:  # guard: an object that is used stays, however far away the ref is
                needed[used] = f"used by object {user}"
                pending.append(used)
    return needed


def _uses(survey: Survey) -> dict[ObjectId, frozenset[ObjectId] | None]:
    """What each object uses, by any copy of it that can be read: an id has one content."""
    copies = [(one.object, one.uses) for one in survey.trash if one.object is not None]
    copies += [(one.id, one.uses) for one in survey.objects]
    return dict(copies) | {object_id: uses for object_id, uses in copies if uses is not None}


def _doubt(survey: Survey, needed: Mapping[ObjectId, str]) -> str:
    """Why nobody can tell what is needed, or ""."""
    if survey.bad_refs:  # guard: nothing goes while a ref cannot be read
        return f"a ref cannot be read, so nobody knows what it names: {survey.bad_refs[0]}"
    unknown = {object_id for object_id, uses in _uses(survey).items() if uses is None and object_id in needed}
    for one in survey.objects:
        if one.id in unknown:  # guard: nothing goes while it is not known what an object uses
            return f"object {one.id} stays ({needed[one.id]}), but nobody knows what it uses: {one.problem}"
    for aside in survey.trash:
        # guard: nothing goes while it is not known what something in the trash uses
        if aside.object is not None and aside.object in unknown:
            return f"{aside.path.name} in the trash is needed ({needed[aside.object]}), but nobody knows what it uses"
    return ""


def _of_objects(survey: Survey, needed: Mapping[ObjectId, str], doubt: str) -> Iterator[Verdict]:
    for one in survey.objects:
        if one.id in needed:
            fate, why = Fate.KEEP, needed[one.id]
        elif doubt:  # guard: in doubt no object is trashed
            fate, why = Fate.KEEP, doubt
        else:
            fate, why = (
                Fate.TRASH,
                f"no ref, no holder, {one.age_s:.0f} s old{'; ' if one.problem else ''}{one.problem}",
            )
        yield Verdict(one.path, fate, why, one.size_bytes, one.id)


def _of_work(survey: Survey, grace: Grace) -> Iterator[Verdict]:
    for one in survey.work:
        if of_work(one.attempt) in survey.living:  # guard: work of the living stays
            fate, why = Fate.KEEP, "somebody is at work in it"
        elif one.age_s < grace.work_s:  # guard: work of the dead stays for a while
            fate, why = Fate.KEEP, f"nobody is at work in it, but for {grace.work_s:g} s somebody may go on with it"
        else:
            fate, why = Fate.TRASH, f"nobody is at work in it, and nothing was written for {one.age_s:.0f} s"
        yield Verdict(one.path, fate, why, one.size_bytes)


def _of_trash(survey: Survey, grace: Grace, needed: Mapping[ObjectId, str], doubt: str) -> Iterator[Verdict]:
    there = {one.id for one in survey.objects if one.uses is not None}  # guard: a husk does not count as there
    husks = {one.id for one in survey.objects if one.uses is None}  # make room for a copy that can be read
    best: dict[ObjectId, FoundAside] = {}  # a second copy is not needed
    for one in sorted(
        survey.trash,
        key=lambda one: one.uses is None,  # guard: of two copies in the trash the readable one comes back
    ):
        if one.object is None or one.object not in needed or one.object in there:
            continue
        if (
            one.uses is not None or one.object not in husks  # guard: a husk takes no husk's place
        ):
            best.setdefault(one.object, one)
    there |= best.keys()
    for one in survey.trash:
        if one.object is not None and best.get(one.object) is one:  # guard: what is needed comes back from the trash
            yield Verdict(one.path, Fate.RESTORE, needed[one.object], one.size_bytes, one.object)
        elif one.object is not None and one.object not in there and doubt:  # guard: in doubt nothing leaves the trash
            yield Verdict(one.path, Fate.KEEP, doubt, one.size_bytes, one.object)
        else:
            yield _by_age(one, grace.trash_s, "nobody asked for it in the trash", "somebody may still ask for it")


def _by_age(one: FoundAside, grace_s: float, why_go: str, why_stay: str) -> Verdict:
    if one.age_s < grace_s:  # guard: what is trashed stays for a while
        return Verdict(one.path, Fate.KEEP, f"{why_stay}: {one.age_s:.0f} of {grace_s:g} s", one.size_bytes, one.object)
    return Verdict(one.path, Fate.REMOVE, f"{why_go}, {one.age_s:.0f} s old", one.size_bytes, one.object)
