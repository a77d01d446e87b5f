"""The pages beside the results are made of them, and are read without a JSON viewer."""

import json
from pathlib import Path

from evidence.pages import page, pages, write


def test_the_pages_are_those_of_the_results() -> None:
    stale = [path.name for path, text in pages().items() if not path.exists() or path.read_text() != text]
    assert stale == [], "python -m evidence pages"


def test_a_page_has_the_machine_the_bars_and_the_rows() -> None:
    found = {
        "command": "make it",
        "hardware": "2 cores",
        "bars": [{"bar": "fast", "goal": "< 1", "value": 0.123456, "met": True}],
        "rows": [{"case": "a|b", "median": 12345.6, "raw": [1, 2]}, {"case": "c", "n": None}],
        "ran": 3,
    }
    assert page("policy/it", found).splitlines() == [
        "# policy/it",
        "",
        "Made of `it.json` by `python -m evidence pages`.",
        "",
        "- command: make it",
        "- hardware: 2 cores",
        "",
        "| bar | goal | value | met |",
        "| --- | --- | --- | --- |",
        "| fast | < 1 | 0.1235 | yes |",
        "",
        "## rows",
        "",
        "| case | median | n |",
        "| --- | --- | --- |",
        "| a\\|b | 12346 |  |",
        "| c |  |  |",
        "",
        "ran: 3",
    ]


def test_many_figures_of_a_few_have_a_line_each() -> None:
    policies = {name: {f"f{n}": {"mean": n / 3, "std": 0.5} for n in range(20)} for name in ("ours", "theirs")}
    lines = page("x", {"policies": policies}).splitlines()
    assert "| name | ours | theirs |" in lines
    assert "| f1 | 0.3333 ± 0.5 | 0.3333 ± 0.5 |" in lines


def test_only_what_has_changed_is_written(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    for name in ("a", "policy/b", "guards"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"ran": 1}))
    assert [path.name for path in write(tmp_path)] == ["a.md", "b.md"]
    (tmp_path / "a.json").write_text(json.dumps({"ran": 2}))
    assert [path.name for path in write(tmp_path)] == ["a.md"]
