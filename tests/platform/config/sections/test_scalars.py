"""Sizes and names mean what they look like."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from ebbtide.config.sections.scalars import BASE_DIR, ModelPlace, SizeBytes, Slug, is_stored_model


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        (1, 1),
        ("1", 1),
        ("17 B", 17),
        ("8 GiB", 8 * 2**30),
        ("8GiB", 8 * 2**30),
        ("1.5 MiB", 3 * 2**19),
        ("64 Ki", 65536),
        ("2 GB", 2 * 10**9),
        ("1 T", 10**12),
    ],
)
def test_a_size_is_a_number_of_bytes(written: object, size_bytes: int) -> None:
    assert TypeAdapter(SizeBytes).validate_python(written, strict=True) == size_bytes


@pytest.mark.parametrize("written", ["8 gib", "GiB", "-1 GiB", "0", 0, -1, 1.5, True, None, "1e400", "9" * 400, "1 2"])
def test_anything_else_is_no_size(written: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(SizeBytes).validate_python(written, strict=True)


@pytest.mark.parametrize("name", ["a", "0", "llama-3.1-8b", "a_b", "a" * 63])
def test_names_that_are_safe_everywhere(name: str) -> None:
    assert TypeAdapter(Slug).validate_python(name) == name


@pytest.mark.parametrize("name", ["", "A", "-a", ".", "..", "a/b", "a b", "a\n", "é", "a" * 64])
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Slug).validate_python(name)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("org/model:latest", True),
        ("tiny:v1.2", True),
        ("models/tiny", False),
        ("./org/model:latest", False),
        ("/models/a:b", False),
        ("~/a:b", False),
        ("a:", False),
        (":a", False),
        ("a:b/c", False),
        ("a b:c", False),
    ],
)
def test_a_colon_tells_a_name_of_the_store_from_a_directory(text: str, stored: bool) -> None:
    found: Path = TypeAdapter(ModelPlace).validate_python(text, context={BASE_DIR: Path("/base")})
    assert is_stored_model(found) is stored
    assert found.is_absolute() is not stored


def test_a_url_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValidationError, match="ebbtide models import"):
        TypeAdapter(ModelPlace).validate_python("s3://bucket/model")
