"""Whatever a keeper was killed in the middle of, the next one begins rightly: a table of all lives and finds."""

import itertools

import pytest

from ebbtide_train.interactive.supervision.session_record import Beginning, Found, How, Life, Record, begin

MINE = "digest"


def how(
    life: Life | None, *, images: int = 0, began: bool = True, code: int | None = None, newer: bool = False
) -> Beginning:
    record = None if life is None else Record(life=life, command=MINE, images=images)
    return begin(record, Found(began=began, code=code, newer=newer), command=MINE)


def test_a_new_one_and_one_that_has_ended_start() -> None:
    assert how(None).how is How.START
    assert how(Life.ENDED, images=3, code=1).how is How.START


def test_a_start_that_never_came_to_pass_is_made_again_and_one_that_did_is_not() -> None:
    assert how(Life.STARTING, began=False).how is How.START
    lost = how(Life.STARTING, began=True)
    assert lost.how is How.TELL and "there is no image" in lost.why


def test_an_image_is_revived() -> None:
    assert how(Life.IMAGED, images=2) == Beginning(How.REVIVE, 2)


def test_an_image_that_was_committed_as_the_keeper_died_counts_and_half_a_one_does_not() -> None:
    assert how(Life.IMAGING, images=1, newer=True) == Beginning(How.REVIVE, 2)
    back = how(Life.IMAGING, images=1, newer=False)
    assert (back.how, back.image) == (How.REVIVE, 1) and "goes back to its last image" in back.why
    assert how(Life.IMAGING, images=0, newer=False).how is How.TELL


def test_an_end_that_nobody_noted_is_told_and_never_repeated() -> None:
    for life, images, newer in itertools.product((Life.RUNNING, Life.IMAGING), (0, 1), (False, True)):
        assert how(life, images=images, newer=newer, code=0) == Beginning(How.TELL)


def test_killed_while_it_ran_it_goes_back_to_its_image_or_is_lost_aloud() -> None:
    assert how(Life.RUNNING, images=4).image == 4
    assert how(Life.RUNNING).how is How.TELL and how(Life.RUNNING).why


def test_an_image_of_another_command_is_never_revived() -> None:
    with pytest.raises(ValueError, match="image of another command"):
        begin(
            Record(life=Life.IMAGED, command="other", images=1), Found(began=True, code=None, newer=False), command=MINE
        )
    started = begin(Record(life=Life.RUNNING, command="other"), Found(began=True, code=None, newer=False), command=MINE)
    assert started.how is How.START


def test_records_survive_the_file_and_damaged_ones_are_refused() -> None:
    record = Record(life=Life.IMAGED, command=MINE, images=2, code=None, outcome="x")
    assert Record.from_json(record.as_json()) == record
    with pytest.raises(ValueError):
        Record.from_json({"life": "imaged"})
    with pytest.raises(ValueError):
        Record.from_json({**record.as_json(), "life": "no such"})
