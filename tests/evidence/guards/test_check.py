"""A guard without a test and a test without a guard are named."""

from pathlib import Path

import pytest

from evidence.guards.check import complaints

ROOT = Path(__file__).parents[3]


def tree(folder: Path, source: str, test: str) -> Path:
    (folder / "platform").mkdir()
    (folder / "tests").mkdir()
    (folder / "platform" / "m.py").write_text(source)
    (folder / "tests" / "test_m.py").write_text(f"import pytest\n{test}def test_m():\n    pass\n")
    return folder


@pytest.mark.parametrize(
    "source, test, said",
    [
        ("if x:  # guard: one\n    pass\n", '@pytest.mark.proves("one")\n', []),
        (
            "if x:  # guard: one\n    pass\n",
            "",
            ["platform/m.py:1: no test proves the guard 'one': mark one with pytest.mark.proves"],
        ),
        ("", '@pytest.mark.proves("one")\n', ["tests/test_m.py::test_m: there is no guard 'one' in the source"]),
        (
            "if x:  # guard: one\n    pass\nif y:  # guard: one\n    pass\n",
            '@pytest.mark.proves("one")\n',
            [f"platform/m.py:{line}: 2 guards have the name 'one': give each its own" for line in (1, 3)],
        ),
        (
            "x = f()  # guard: one\n",
            '@pytest.mark.proves("one")\n',
            [
                "platform/m.py:1: the guard 'one' cannot be taken out: no condition, and no statement that can be "
                "left out, begins or ends on this line"
            ],
        ),
    ],
)  # fmt: skip
def test_what_does_not_match_is_named_with_its_place(tmp_path: Path, source: str, test: str, said: list[str]) -> None:
    assert list(complaints(tree(tmp_path, source, test))) == said


def test_every_guard_of_the_product_has_a_test_and_every_test_its_guard() -> None:
    assert list(complaints(ROOT)) == []
