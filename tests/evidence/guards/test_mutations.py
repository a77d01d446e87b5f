"""How a guard is taken out follows from what stands on its line."""

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence.guards.mutations import NoCondition, mutations, ways


def without(source: str, marker: str = "# here") -> dict[str, str]:
    """The mutations of the line that has the marker, by how; each as one line without spaces at its ends."""
    source = textwrap.dedent(source)
    [line] = [number for number, text in enumerate(source.splitlines(), 1) if marker in text]
    assert ways(ast.parse(source), line) == [one.how for one in mutations(source, line)]
    return {one.how: one.source for one in mutations(source, line)}


def said(source: str) -> dict[str, str]:
    """The same for a function ``f``: its first statement alone."""
    return {how: ast.unparse(ast.parse(text).body[0].body[0]) for how, text in without(source).items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "source, mutated",
    [
        (
            "def f():\n    if a < b:  # here\n        stop()",
            {"inverted": "if not a < b:\n    stop()", "removed": "if False:\n    stop()"},
        ),
        (
            "def f():\n    if a and b:  # here\n        stop()",
            {"inverted": "if not (a and b):\n    stop()", "removed": "if False:\n    stop()"},
        ),
        (
            "def f():\n    if (\n        a  # here\n        and b\n    ):\n        go()",
            {"inverted": "if not a and b:\n    go()", "removed": "if True and b:\n    go()"},
        ),
        (
            "def f():\n    if (\n        a\n        or b  # here\n    ):\n        go()",
            {"inverted": "if a or not b:\n    go()", "removed": "if a or False:\n    go()"},
        ),
        ("def f():\n    while busy():  # here\n        wait()", {"removed": "while False:\n    wait()"}),
        ("def f():\n    assert a  # here", {"inverted": "assert not a", "removed": "assert True"}),
        ("def f():\n    x = a if b else c  # here", {"inverted": "x = a if not b else c"}),
        (
            "def f():\n    x = [n for n in ns if n > 2]  # here",
            {"inverted": "x = [n for n in ns if not n > 2]", "removed": "x = [n for n in ns if True]"},
        ),
        ("def f():\n    return a == b  # here", {"inverted": "return not a == b"}),
        ("def f():\n    free = not taken  # here", {"inverted": "free = not not taken"}),
        ("def f():\n    return min(a, bound)  # here", {"without its bound": "return a"}),
        ("def f():\n    x = max(a, b, least)  # here", {"without its bound": "x = max(a, b)"}),
        ("def f():\n    return -a, b  # here", {"orders nothing": "return ()"}),
        ("def f():\n    fsync(file)  # here", {"left out": "pass"}),
        ("def f():\n    raise Refused  # here", {"left out": "pass"}),
        ("def f():\n    self.closed = True  # here", {"inverted": "self.closed = not True"}),
        ("def f():\n    self.taken += 1  # here", {"left out": "pass"}),
        ("def f():\n    with lock:  # here\n        go()", {"without its context": "if True:\n    go()"}),
        (
            "def f():\n    go(\n        a,\n        timeout=3,  # here\n    )",
            {"left out": "go(a)"},
        ),
        (
            "def f():\n    go(\n        a,\n        safe=x > 2,  # here\n    )",
            {"inverted": "go(a, safe=not x > 2)"},
        ),
    ],
)
def test_what_stands_on_the_line_is_taken_out(source: str, mutated: dict[str, str]) -> None:
    assert said(source) == mutated


def test_an_except_catches_nothing() -> None:
    found = without("try:\n    go()\nexcept OSError:  # here\n    pass")
    assert found == {"catches nothing": "try:\n    go()\nexcept ():\n    pass"}


def test_the_condition_of_an_if_of_several_lines_is_meant_by_its_first_line() -> None:
    found = said("def f():\n    if (  # here\n        a\n        and b\n    ):\n        go()")
    assert found["inverted"] == "if not (a and b):\n    go()"


def test_an_elif_is_a_condition_too() -> None:
    found = without("if a:\n    pass\nelif b:  # here\n    go()")
    assert found["removed"] == "if a:\n    pass\nelif False:\n    go()"


def test_a_case_may_be_guarded() -> None:
    found = without("match a:\n    case B() if a.c:  # here\n        go()")
    assert found["removed"].splitlines()[1].strip() == "case B() if True:"


@pytest.mark.parametrize(
    "source",
    [
        "x = f(3)  # here",
        "def f():  # here\n    pass",
        "x = [a for a in b if a], [c for c in d if c]  # here",
        "import os  # here",
    ],
)
def test_a_line_without_a_condition_or_with_two_is_refused(source: str) -> None:
    with pytest.raises(NoCondition):
        without(source)


NAMES = st.sampled_from("abcd")
CONDITIONS = st.recursive(
    NAMES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda one: f"({one[0]} {one[1]} {one[2]})"),
        inner.map(lambda one: f"(not {one})"),
    ),
    max_leaves=6,
)


@given(CONDITIONS, st.fixed_dictionaries({name: st.booleans() for name in "abcd"}))
def test_inverted_is_the_contrary_and_removed_lets_everything_pass(condition: str, values: dict[str, bool]) -> None:
    source = f"if {condition}:\n    refused = True\nelse:\n    refused = False"
    found = {one.how: _run(one.source, values) for one in mutations(source, 1)}
    assert found["inverted"] is not _run(source, values)
    assert found["removed"] is False


def _run(source: str, values: dict[str, bool]) -> bool:
    names: dict[str, bool] = dict(values)
    exec(source, {}, names)
    return names["refused"]
