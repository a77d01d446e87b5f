"""Guards are found by their comments, wherever they stand."""

from pathlib import Path

from evidence.guards.comments import Guard, guards_in, guards_of

SOURCE = '''
def f(a, b):
    """# guard: not in a docstring"""
    if a:  # guard: one
        return "# guard: not in a string"
    # guard: two
    # why it is there
    if b:
        pass
    return (
        a  # guard: three; four
        and b
    )
    # guard: stands before nothing
'''


def test_a_comment_names_the_condition_of_its_line_or_of_the_next_line_of_code() -> None:
    found = [(guard.name, guard.line) for guard in guards_in(SOURCE, "f.py")]
    assert found == [("one", 4), ("two", 8), ("three", 11), ("four", 11)]


def test_a_source_without_guards_has_none() -> None:
    assert list(guards_in("x = 1  # guards\n", "f.py")) == []


def test_the_rooms_are_searched_and_nothing_else(tmp_path: Path) -> None:
    for folder in ("platform/ebbtide", "tests", "autoscaler/x"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "m.py").write_text(f"if x:  # guard: of {folder}\n    pass\n")
    assert guards_of(tmp_path) == [
        Guard("of platform/ebbtide", "platform/ebbtide/m.py", 1),
        Guard("of autoscaler/x", "autoscaler/x/m.py", 1),
    ]
