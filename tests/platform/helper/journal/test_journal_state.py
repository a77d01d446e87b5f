"""The tables, and what the journal's lines add up to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.helper.journal.journal_state import JournalState, Line
from ebbtide.helper.journal.workload_states import ENDS, FIRST, NEXT, STANDING, Op, Standing, Step, edges
from tests.examples import examples

NAMES = ("a", "b")


def line(name: str, op: Op, step: Step, operation: str, generation: int = 1) -> Line:
    return Line(
        at_s=0.0, operation=operation, op=op, step=step, name=name, pid=100 + generation, started=7, boot="boot",
        generation=generation, uid=0, facts={"image_dir": f"/{name}"},
    )  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_whatever_happened_the_short_journal_says_the_same(data: st.DataObject) -> None:
    book, number = JournalState(), 0
    for _ in range(data.draw(st.integers(0, 30))):
        name = data.draw(st.sampled_from(NAMES))
        entry = book.entries.get(name)
        if entry is not None and entry.under_way:
            last = entry.under_way[-1]
            step = data.draw(st.sampled_from(sorted(NEXT[last.op][last.step], key=list(Step).index)))
            one = line(name, last.op, step, last.operation, entry.generation)
        else:
            number += 1
            op = data.draw(st.sampled_from(list(Op)))
            step = Step.INTENT if NEXT[op] else Step.DONE
            one = line(name, op, step, f"operation-{number}", number)
        book = book.apply(one)
    again = JournalState()
    for one in book.lines():
        again = again.apply(one)
    assert again == book
    assert len(book.lines()) <= len(NAMES) * 16


@pytest.mark.parametrize("op", list(Op))
@pytest.mark.proves("an operation begins with its first step", "the book refuses what the tables do not list")
def test_a_line_that_the_tables_do_not_list_is_refused_and_changes_nothing(op: Op) -> None:
    for last in (None, *Step):
        for step in Step:
            refused_or_taken(op, last, step)


def refused_or_taken(op: Op, last: Step | None, step: Step) -> None:
    book = JournalState()
    if last is not None:
        if last in ENDS or last not in NEXT[op]:
            return
        for before in path_to(op, last):
            book = book.apply(line("a", op, before, "one"))
    entries = dict(book.entries)
    if step is FIRST[op] if last is None else step in NEXT[op][last]:
        book.apply(line("a", op, step, "one"))
    else:
        with pytest.raises(ValueError, match="cannot go from"):
            book.apply(line("a", op, step, "one"))
    assert book.entries == entries


def path_to(op: Op, step: Step) -> list[Step]:
    """The way from the first step to ``step``."""
    way = [step]
    while way[0] is not Step.INTENT:
        way.insert(0, next(last for last, then in edges(op) if then is way[0]))
    return way


@pytest.mark.parametrize("op", [Op.DUMP, Op.REVIVE, Op.DISCARD, Op.LOCK])
@pytest.mark.parametrize("dumped", [False, True])
def test_what_is_undone_is_back_where_it_was(op: Op, dumped: bool) -> None:
    book = JournalState().apply(line("a", Op.REGISTER, Step.DONE, "one"))
    for step in (*path_to(Op.DUMP, Step.KILLED), Step.DONE) if dumped else ():
        book = book.apply(line("a", Op.DUMP, step, "two"))
    after = book.apply(line("a", op, Step.INTENT, "three")).apply(line("a", op, Step.UNDONE, "three"))
    assert after == book


@pytest.mark.proves("one operation at a time is in the book")
def test_nothing_is_begun_while_something_is_under_way() -> None:
    book = JournalState().apply(line("a", Op.REGISTER, Step.DONE, "one")).apply(line("a", Op.DUMP, Step.INTENT, "two"))
    with pytest.raises(ValueError, match="while dump is under way"):
        book.apply(line("a", Op.LOCK, Step.INTENT, "three"))


def test_every_operation_ends_and_only_an_end_has_no_way_on() -> None:
    for op in Op:
        reached = {step for _, step in edges(op)}
        assert not NEXT[op] or reached & ENDS
        assert not (set(NEXT[op]) & ENDS)
        assert reached - ENDS <= set(NEXT[op])


def test_once_the_image_counts_or_the_tree_runs_there_is_no_way_back() -> None:
    for op, step in ((Op.DUMP, Step.PLACED), (Op.DUMP, Step.KILLED), (Op.REVIVE, Step.RESTORED)):
        assert Step.UNDONE not in NEXT[op][step]


def test_where_lines_put_a_workload() -> None:
    assert all(step is not Step.UNDONE for _, step in STANDING)
    book = JournalState()
    for number, (op, step, standing) in enumerate(
        [
            (Op.REGISTER, Step.DONE, Standing.LIVE),
            *((Op.DUMP, step, Standing.DUMPING) for step in path_to(Op.DUMP, Step.KILLED)),
            (Op.DUMP, Step.DONE, Standing.DUMPED),
            *((Op.REVIVE, step, Standing.REVIVING) for step in path_to(Op.REVIVE, Step.RESTORED)),
            (Op.REVIVE, Step.DONE, Standing.LIVE),
        ]
    ):
        book = book.apply(line("a", op, step, op.value, 2 if number > 8 else 1))
        assert book.entries["a"].standing is standing
    assert book.entries["a"].image_dir == "" and book.entries["a"].generation == 2
