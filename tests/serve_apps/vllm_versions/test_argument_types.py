"""Types are read from their texts, and judge as pydantic, and so vLLM's own classes, does."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from ebbtide_serve.vllm_versions.argument_types import choices, expected, number_meant, takes
from ebbtide_serve.vllm_versions.known_facts import all_facts

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.just("8"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
TYPES: dict[str, Any] = {
    "bool": bool,
    "int | None": int | None,
    "list[int | str] | None": list[int | str] | None,
    "dict[str, dict[str, Any]]": dict[str, dict[str, Any]],
    "Annotated[float, Gt(0)]": float,
}


@given(st.sampled_from(sorted(TYPES)), VALUES)
def test_a_type_takes_what_pydantic_takes(text: str, value: object) -> None:
    try:
        TypeAdapter(TYPES[text]).validate_python(value)
        taken = True
    except ValidationError:
        taken = False
    assert takes(text, value) is taken


@given(
    st.sampled_from(
        [
            "Callable[[Any], Any]",
            "CompilationConfig",
            "dict[str, Any] | Callable[[Any], Any] | int | CompilationConfig",
            "Union[str, Literal['ray', 'mp', 'uni', 'external_launcher'],...",
            "list[",
            "",
            "import os",
            "dict[str, Any] if x else int",
            "Something[int, str]",
            "Literal[f('x')]",
        ]
    ),
    VALUES,
)
def test_what_cannot_be_judged_is_taken(text: str, value: object) -> None:
    assert takes(text, value)


@pytest.mark.parametrize(
    ("text", "value", "taken"),
    [
        ("int", 8, True),
        ("int", "8", True),
        ("int", 8.0, True),
        ("int", "8k", False),
        ("int", None, False),
        ("float", 1, True),
        ("float", "0.9", True),
        ("float", "90%", False),
        ("bool", "yes", True),
        ("bool", "maybe", False),
        ("str", 3, False),
        ("Literal[1, 8, 16]", 8, True),
        ("Literal[1, 8, 16]", 9, False),
        ("Optional[Literal['a', 'b']]", None, True),
        ("Optional[Literal['a', 'b']]", "c", False),
        ("set[str]", ["a"], True),
        ("Literal['auto', 'half', 'flo...", "anything", True),
        ("Literal['auto', 'half', 'flo...", 3, False),
    ],
)
def test_each_form_judges(text: str, value: object, taken: bool) -> None:
    assert takes(text, value) is taken


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bool | None", "true or false"),
        ("list[int]", "a list of whole numbers"),
        ("str | list[str]", "text or a list of texts"),
        ("Optional[Literal['a', 'b']]", "one of a, b"),
        ("dict[str, Any] | None", "a mapping (key: value)"),
        ("None", "null"),
        ("Literal['auto', 'half', 'flo...", "text"),
    ],
)
def test_a_type_is_told_in_words(text: str, words: str) -> None:
    assert expected(text) == words


def test_words_of_the_command_line_are_understood() -> None:
    assert (number_meant("8k"), number_meant("8K"), number_meant("1M")) == (8000, 8192, 1 << 20)
    assert [number_meant(odd) for odd in ("k", "8kb", "8.5k", 8, None, "")] == [None] * 6
    assert choices("Optional[Literal['a', 'b']]") == ["a", "b"]


def test_every_type_on_file_is_read() -> None:
    texts = {text for facts in all_facts() for text in facts.engine_args.values()}
    texts |= {text for facts in all_facts() for one in facts.config_classes.values() for text in one.values()}
    assert len(texts) > 50
    for text in texts:
        assert expected(text)
        takes(text, "x")
