"""Random mistakes, in the data and in the text, give problems within the file and nothing else."""

import io
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load_text
from ebbtide.config.pool_file import PoolFile
from tests.examples import examples

FILE = Path("/some/where/pool.yaml")
TEXT = (Path(__file__).parents[3] / "configs" / "serve_llama8b_and_pretrain_8xh200.yaml").read_text()
BASE: dict[str, Any] = YAML(typ="safe", pure=True).load(TEXT)

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just([]), st.just({}),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)  # fmt: skip


def places_in(node: object, way: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, child in entries for place in ((*way, key), *places_in(child, (*way, key)))]


@st.composite
def broken_files(draw: st.DrawFn) -> str:
    data: Any = deepcopy(BASE)
    for _ in range(draw(st.integers(1, 4))):
        place: Any = draw(st.sampled_from(places_in(data) or [("pool",)]))
        parent: Any = data
        for part in place[:-1]:
            parent = parent[part]
        action = draw(st.sampled_from(["rename", "drop", "junk", "negative", "repeat"]))
        if action == "rename" and isinstance(parent, dict):
            parent[draw(st.text(max_size=10))] = parent.pop(place[-1], None)
        elif action == "drop" and place[-1] in (parent if isinstance(parent, dict) else range(len(parent))):
            del parent[place[-1]]
        elif action == "repeat" and isinstance(parent, list):
            parent.append(deepcopy(parent[place[-1]]))
        else:
            parent[place[-1]] = draw(st.integers(-(10**20), 0)) if action == "negative" else draw(JUNK)
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(data, stream)
    return stream.getvalue()


def load_or_report(text: str) -> None:
    """Either a configuration that survives being stored, or problems whose lines are in the text."""
    try:
        config = load_text(text, path=FILE).config
    except ConfigErrors as error:
        lines = max(1, len(text.splitlines()))
        for problem in error.problems:
            assert 1 <= problem.line <= lines and problem.column >= 1, problem
            assert problem.message and "\n" not in str(problem.message)
            json.dumps(problem.as_json())
    else:
        # As JSON by the model, not by the YAML loader: JSON may hold characters raw that YAML wants escaped.
        assert PoolFile.model_validate_json(config.model_dump_json(by_alias=True)) == config


@given(broken_files())
@settings(max_examples=examples(100), deadline=None)
def test_random_mistakes_in_a_file_never_raise_anything_else(text: str) -> None:
    load_or_report(text)


@given(st.data())
@settings(max_examples=examples(100), deadline=None)
def test_random_damage_to_the_text_never_raises_anything_else(data: st.DataObject) -> None:
    text = TEXT
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.integers(0, 5))
        text = (
            text[:at]
            + data.draw(st.text(alphabet="{}[]:,-#&*!|>'\"%@` \n\tx0.<?\0\x85é", max_size=4))
            + text[at + gone :]
        )
    load_or_report(text)


@given(st.text(max_size=40))
@settings(max_examples=examples(100), deadline=None)
def test_random_text_never_raises_anything_else(text: str) -> None:
    load_or_report(text)
