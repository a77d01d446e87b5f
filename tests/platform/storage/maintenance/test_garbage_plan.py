"""What may go, and why: tables for the rules, and random stores for what must never happen."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.leases.lease_subjects import of_object, of_work
from ebbtide.storage.maintenance.garbage_plan import (
    Fate,
    FoundAside,
    FoundObject,
    FoundWork,
    Grace,
    Survey,
    Verdict,
    plan,
)
from ebbtide.storage.names import Attempt, ObjectId
from tests.examples import examples

GRACE = Grace(object_s=100, work_s=200, trash_s=20, quarantine_s=300, temporary_s=100)
IDS = [ObjectId(digit * 64) for digit in "0123456"]
A, B, C = IDS[:3]
OLD, YOUNG = 1000.0, 5.0


def thing(
    object_id: ObjectId, *uses: ObjectId, age_s: float = OLD, readable: bool = True, size_bytes: int = 10
) -> FoundObject:
    known = frozenset(uses) if readable else None
    return FoundObject(object_id, Path("objects") / object_id, age_s, size_bytes, known, "" if readable else "torn")


def trashed(object_id: ObjectId | None, *uses: ObjectId, age_s: float = OLD, readable: bool = True) -> FoundAside:
    name = f"{object_id or 'work-x'}.{age_s:.0f}"
    return FoundAside(object_id, Path("trash") / name, age_s, 10, frozenset(uses) if readable else None)


def only(survey: Survey) -> Verdict:
    [verdict] = plan(survey, GRACE)
    return verdict


NAMED_A = {A: ("org/model:latest",)}
CASES: dict[str, tuple[Survey, Fate, str]] = {
    "an old object that nobody names": (Survey(objects=(thing(A),)), Fate.TRASH, "no ref, no holder, 1000 s old"),
    "a torn object that nobody names": (Survey(objects=(thing(A, readable=False),)), Fate.TRASH, "torn"),
    "a young object": (Survey(objects=(thing(A, age_s=YOUNG),)), Fate.KEEP, "published 5 s ago"),
    "an object with a ref": (Survey(objects=(thing(A),), refs=NAMED_A), Fate.KEEP, "named by org/model:latest"),
    "an object with many refs": (
        Survey(objects=(thing(A),), refs={A: ("a:1", "a:2", "a:3", "a:4")}),
        Fate.KEEP,
        "named by a:1, a:2, a:3 and others",
    ),
    "a held object": (Survey(objects=(thing(A),), living=frozenset({of_object(A)})), Fate.KEEP, "somebody holds it"),
    "an object whose namesake's work is held": (
        Survey(objects=(thing(A),), living=frozenset({of_object(B), f"work-{A}"})),
        Fate.TRASH,
        "no ref",
    ),
    "any object while a ref is bad": (
        Survey(objects=(thing(A),), bad_refs=("x: nonsense",)),
        Fate.KEEP,
        "a ref cannot be read, so nobody knows what it names: x: nonsense",
    ),
    "abandoned work": (Survey(work=(FoundWork(Attempt("x"), Path("w"), OLD, 1),)), Fate.TRASH, "nobody is at work"),
    "recent work": (Survey(work=(FoundWork(Attempt("x"), Path("w"), 150, 1),)), Fate.KEEP, "may go on with it"),
    "old work of a living process": (
        Survey(work=(FoundWork(Attempt("x"), Path("w"), OLD, 1),), living=frozenset({of_work(Attempt("x"))})),
        Fate.KEEP,
        "somebody is at work in it",
    ),
    "fresh trash": (Survey(trash=(trashed(A, age_s=YOUNG),)), Fate.KEEP, "somebody may still ask for it: 5 of 20 s"),
    "old trash": (Survey(trash=(trashed(A),)), Fate.REMOVE, "nobody asked for it in the trash"),
    "old trash that was work": (Survey(trash=(trashed(None),), bad_refs=("x",)), Fate.REMOVE, "nobody asked"),
    "trash that is named again": (Survey(trash=(trashed(A),), refs=NAMED_A), Fate.RESTORE, "named by org/model:latest"),
    "fresh trash that is held": (
        Survey(trash=(trashed(A, age_s=YOUNG),), living=frozenset({of_object(A)})),
        Fate.RESTORE,
        "somebody holds it",
    ),
    "trash while a ref is bad": (Survey(trash=(trashed(A),), bad_refs=("x",)), Fate.KEEP, "a ref cannot be read"),
    "old quarantine, though named": (
        Survey(quarantine=(trashed(A),), refs=NAMED_A),
        Fate.REMOVE,
        "damaged, and nobody repaired it",
    ),
    "fresh quarantine": (Survey(quarantine=(trashed(A, age_s=YOUNG),)), Fate.KEEP, "time to repair it: 5 of 300 s"),
    "an old temporary file": (Survey(temporaries=(trashed(None),)), Fate.REMOVE, "left of a replacement"),
    "a fresh temporary file": (Survey(temporaries=(trashed(None, age_s=YOUNG),)), Fate.KEEP, "maybe being written"),
}


@pytest.mark.proves(
    "a young object stays",
    "an object that has a name stays",
    "an object that is held stays",
    "in doubt no object is trashed",
    "in doubt nothing leaves the trash",
    "nothing goes while a ref cannot be read",
    "what is needed comes back from the trash",
    "what is trashed stays for a while",
    "work of the dead stays for a while",
    "work of the living stays",
)
@pytest.mark.parametrize(("survey", "fate", "why"), CASES.values(), ids=CASES.keys())
def test_each_thing_has_a_fate_and_a_reason(survey: Survey, fate: Fate, why: str) -> None:
    verdict = only(survey)
    assert verdict.fate is fate
    assert why in verdict.why


def fates(survey: Survey) -> dict[str, Fate]:
    return {verdict.path.name[:1]: verdict.fate for verdict in plan(survey, GRACE)}


@pytest.mark.proves("an object that is used stays, however far away the ref is")
def test_what_is_used_stays_however_far_away_the_ref_is() -> None:
    survey = Survey(objects=(thing(A, B), thing(B, C), thing(C), thing(IDS[3], C)), refs=NAMED_A)
    assert fates(survey) == {"0": Fate.KEEP, "1": Fate.KEEP, "2": Fate.KEEP, "3": Fate.TRASH}
    verdicts = {verdict.object: verdict.why for verdict in plan(survey, GRACE)}
    assert verdicts[C] == f"used by object {B}"


def test_objects_that_use_each_other_go_together() -> None:
    survey = Survey(objects=(thing(A, B), thing(B, A)))
    assert set(fates(survey).values()) == {Fate.TRASH}


@pytest.mark.proves("nothing goes while it is not known what an object uses")
def test_nothing_goes_while_an_object_that_stays_cannot_be_read() -> None:
    survey = Survey(objects=(thing(A, readable=False), thing(B)), trash=(trashed(C),), refs=NAMED_A)
    assert fates(survey) == {"0": Fate.KEEP, "1": Fate.KEEP, "2": Fate.KEEP}
    assert "nobody knows what it uses: torn" in plan(survey, GRACE)[1].why
    assert fates(Survey(objects=(thing(A, readable=False), thing(B)))) == {"0": Fate.TRASH, "1": Fate.TRASH}


@pytest.mark.proves("nothing goes while it is not known what something in the trash uses")
def test_what_a_restored_object_uses_is_restored_with_it() -> None:
    survey = Survey(trash=(trashed(A, B), trashed(B), trashed(C)), refs=NAMED_A)
    assert fates(survey) == {"0": Fate.RESTORE, "1": Fate.RESTORE, "2": Fate.REMOVE}
    unreadable = Survey(objects=(thing(C),), trash=(trashed(A, readable=False), trashed(B)), refs=NAMED_A)
    assert fates(unreadable) == {"0": Fate.RESTORE, "1": Fate.KEEP, "2": Fate.KEEP}


def test_of_two_copies_in_the_trash_one_is_restored() -> None:
    survey = Survey(trash=(trashed(A, age_s=OLD), trashed(A, age_s=OLD + 1)), refs=NAMED_A)
    assert [verdict.fate for verdict in plan(survey, GRACE)] == [Fate.RESTORE, Fate.REMOVE]
    there = Survey(objects=(thing(A),), trash=(trashed(A),), refs=NAMED_A)
    assert [verdict.fate for verdict in plan(there, GRACE)] == [Fate.KEEP, Fate.REMOVE]


@pytest.mark.proves("a husk does not count as there")
def test_a_husk_in_its_place_does_not_cost_the_good_copy_in_the_trash() -> None:
    survey = Survey(objects=(thing(A, readable=False), thing(B)), trash=(trashed(A, B),), refs=NAMED_A)
    assert [verdict.fate for verdict in plan(survey, GRACE)] == [Fate.KEEP, Fate.KEEP, Fate.RESTORE]
    assert plan(survey, GRACE)[1].why == f"used by object {A}", "the good copy tells what it uses"


@pytest.mark.proves("of two copies in the trash the readable one comes back")
def test_of_a_husk_and_a_good_copy_in_the_trash_the_good_one_is_restored() -> None:
    survey = Survey(trash=(trashed(A, readable=False), trashed(A, B), trashed(B)), refs=NAMED_A)
    assert [verdict.fate for verdict in plan(survey, GRACE)] == [Fate.REMOVE, Fate.RESTORE, Fate.RESTORE]


@pytest.mark.proves("a husk takes no husk's place")
def test_a_husk_in_the_trash_takes_no_husks_place() -> None:
    survey = Survey(objects=(thing(A, readable=False),), trash=(trashed(A, readable=False),), refs=NAMED_A)
    assert [verdict.fate for verdict in plan(survey, GRACE)] == [Fate.KEEP, Fate.KEEP]
    assert only(Survey(trash=survey.trash, refs=NAMED_A)).fate is Fate.RESTORE, "it takes a place that is free"


AGES = st.sampled_from([0.0, YOUNG, 50.0, OLD])
SOME = st.frozensets(st.sampled_from(IDS), max_size=3)
SURVEYS = st.builds(
    Survey,
    objects=st.lists(
        st.builds(
            lambda one, uses, age, readable: thing(one, *uses, age_s=age, readable=readable),
            st.sampled_from(IDS),
            SOME,
            AGES,
            st.sampled_from([True, True, True, False]),
        ),
        max_size=6,
        unique_by=lambda one: one.id,
    ).map(tuple),
    trash=st.lists(
        st.builds(
            lambda one, uses, age, readable: trashed(one, *uses, age_s=age, readable=readable),
            st.sampled_from([*IDS, None]),
            SOME,
            AGES,
            st.sampled_from([True, True, True, False]),
        ),
        max_size=4,
    ).map(tuple),
    refs=st.dictionaries(st.sampled_from(IDS), st.just(("n:t",)), max_size=3),
    bad_refs=st.sampled_from([(), (), ("bad",)]),
    living=st.frozensets(st.sampled_from([*map(of_object, IDS)]), max_size=2),
)


@settings(max_examples=examples(500), deadline=None)
@given(SURVEYS)
def test_nothing_that_is_needed_ever_goes(survey: Survey) -> None:
    verdicts = plan(survey, GRACE)
    assert len(verdicts) == len(survey.objects) + len(survey.trash)
    assert all(verdict.why for verdict in verdicts)
    uses = {one.id: one.uses or frozenset() for one in survey.objects}
    needed = set(survey.refs) | {one.id for one in survey.objects if one.age_s < GRACE.object_s}
    needed |= {one for one in uses if of_object(one) in survey.living}
    for _ in IDS:
        needed |= {used for one in needed for used in uses.get(one, ())}
    stays = {one.object for one in verdicts if one.object and one.fate in (Fate.KEEP, Fate.RESTORE)}
    there = set(uses) | {one.object for one in survey.trash}
    assert needed & there <= stays
    gone = {one.object for one in verdicts if one.fate in (Fate.TRASH, Fate.REMOVE)} - stays
    assert not gone & needed
    if survey.bad_refs:
        assert not [one for one in verdicts if one.fate is Fate.TRASH]
        assert not gone - {None}


@settings(max_examples=examples(500), deadline=None)
@given(SURVEYS)
def test_of_what_is_needed_a_copy_that_can_be_read_stays_if_there_is_one(survey: Survey) -> None:
    copies: list[FoundObject | FoundAside] = [*survey.objects, *survey.trash]
    found = zip(plan(survey, GRACE), copies, strict=True)
    good = [verdict for verdict, one in found if verdict.object in survey.refs and one.uses is not None]
    stay = {verdict.object for verdict in good if verdict.fate in (Fate.KEEP, Fate.RESTORE)}
    assert stay == {verdict.object for verdict in good}


@settings(max_examples=examples(200), deadline=None)
@given(SURVEYS)
def test_a_plan_depends_on_nothing_but_what_was_found(survey: Survey) -> None:
    assert plan(survey, GRACE) == plan(survey, GRACE)
