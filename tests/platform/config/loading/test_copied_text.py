"""Pool files as they are written and copied: anchors, keys of one's own, and characters that only look like others."""

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.json_schema import pool_file_schema
from ebbtide.config.loading.pool_file_loader import load_text
from ebbtide.config.loading.yaml_document import parse
from ebbtide.config.pool_file import PoolFile

POOL = "pool:\n  name: tide\n  shared_dir: /shared\n"
JOBS = "jobs:\n  - {name: one, entrypoint: 'a:b', slots: 1}\n"


def load(text: str) -> PoolFile:
    return load_text(text, path=Path("/somewhere/pool.yaml")).config


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigErrors) as raised:
        load(text)
    return [f"{one.line}:{one.column} {one.message}" for one in raised.value.problems]


EXTENDED = """\
x-job: &job
  entrypoint: "a:b"
  workers: {min: 1, max: 1}
  global_batch: 8
  micro_batch: 4
  args: {x-kept: 1}
pool:
  name: tide
  shared_dir: /shared
  x-note: of the platform team
jobs:
  - <<: *job
    name: one
    x-owner: {team: [nlp]}
  - <<: [*job]
    name: two
    micro_batch: 2
"""


def test_keys_of_ones_own_are_for_anchors_and_notes() -> None:
    found = load(EXTENDED)
    assert [(job.name, job.micro_batch, job.args) for job in found.jobs] == [
        ("one", 4, {"x-kept": 1}),
        ("two", 2, {"x-kept": 1}),
    ]
    Draft202012Validator(pool_file_schema()).validate(parse(EXTENDED).data)


def test_what_is_wrong_in_an_anchor_is_told_where_it_stands() -> None:
    text = EXTENDED.replace("micro_batch: 4", "micro_batsh: 4", 1)
    assert problems(text)[0] == "5:3 unknown key 'micro_batsh'"


def test_a_misspelt_key_is_no_key_of_ones_own() -> None:
    assert problems(POOL + "X-common: 1\n") == ["4:1 unknown key 'X-common'"]
    assert problems(POOL + "xcommon: 1\n") == ["4:1 unknown key 'xcommon'"]


def test_a_bomb_of_aliases_under_a_key_of_ones_own_is_refused() -> None:
    layers = "".join(f"  - &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 8))
    (problem,) = problems(f"x-bomb:\n  - &l0 [1, 2, 3]\n{layers}{POOL}")
    assert "more than 100000 values" in problem


LOOKALIKES = {
    "non-breaking indentation": ("pool:\n\u00a0\u00a0name: tide\n", "2:1", "non-breaking space (U+00A0)"),
    "non-breaking within indentation": (POOL.replace("  shared", " \u00a0shared"), "3:2", "non-breaking space"),
    "non-breaking after the colon": (POOL.replace("name: ", "name:\u00a0"), "2:8", "non-breaking space (U+00A0)"),
    "non-breaking before the colon": (POOL.replace("name:", "name\u00a0:"), "2:7", "non-breaking space (U+00A0)"),
    "non-breaking after the value": (POOL.replace("tide", "tide\u00a0"), "2:13", "non-breaking space (U+00A0)"),
    "narrow": (POOL.replace("tide", "ti\u202fde"), "2:11", "narrow non-breaking space (U+202F)"),
    "ideographic": (POOL.replace("tide", "tide\u3000"), "2:13", "ideographic space (U+3000)"),
    "zero width": (POOL.replace("name", "na\u200bme"), "2:5", "zero-width space, U+200B"),
    "a second byte order mark": (POOL.replace("  name", "  \ufeffname"), "2:3", "byte order mark, U+FEFF"),
    "quotation marks": (POOL.replace("tide", "\u201ctide\u201d"), "2:9", "typographic quotation mark (U+201C)"),
    "one quotation mark": (POOL.replace("tide", "tide\u2019"), "2:13", "typographic quotation mark (U+2019)"),
    "a dash for a list": (POOL + JOBS.replace("- {", "\u2013 {"), "5:3", "dash (U+2013)"),
    "a tab": (POOL.replace("  name", "\tname"), "2:1", "a tab (U+0009) stands where spaces must"),
    "a tab after spaces": (POOL.replace("  name", " \tname"), "2:2", "a tab (U+0009)"),
    "a bell": (POOL.replace("tide", "ti\u0007de"), "2:11", "U+0007"),
}


@pytest.mark.proves("a character that looks like another one is named")
@pytest.mark.parametrize(("text", "place", "what"), LOOKALIKES.values(), ids=LOOKALIKES)
def test_a_character_that_looks_like_another_is_named_with_place_and_remedy(text: str, place: str, what: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(f"{place} ")
    assert what in problem
    assert ": type " in problem or ": delete it" in problem


@pytest.mark.parametrize(
    "text", ['"a\u00a0b"', "'\u201ca\u201d'", "|\n  a\u00a0b\n", "don\u2019t", "1 # \u00a0\u201cyes\u201d\u200b"]
)
def test_in_quotes_and_comments_they_are_text(text: str) -> None:
    assert load(f"{POOL}x-text: {text}\n").pool.name == "tide"


def test_a_byte_order_mark_at_the_beginning_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + POOL.replace("\n", "\r\n").encode())
    assert load_text(path.read_bytes().decode("utf-8-sig"), path=path).config.pool.name == "tide"
