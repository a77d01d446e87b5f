"""Secrets are read by reference, judged by length and kept as SHA-256."""

from hashlib import sha256
from pathlib import Path

import pytest

from ebbtide.config.checks.secret_digest import secret_sha256
from ebbtide.config.errors import SecretUnavailable
from ebbtide.config.sections.key_section import Secret

SECRET = "sk-0123456789abcdef012345"
DIGEST = sha256(SECRET.encode()).hexdigest()


def test_the_three_ways_to_name_a_secret_give_one_digest(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f" {SECRET}\n")
    assert secret_sha256(Secret(file=file), environ={}) == DIGEST
    assert secret_sha256(Secret(env="KEY"), environ={"KEY": SECRET}) == DIGEST
    assert secret_sha256(Secret(sha256=DIGEST), environ={}) == DIGEST


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", "holds 0 characters"),
        (b"short", "holds 5 characters: expected 22"),
        (b"x" * 5000, "characters: expected 22 "),
        (b"\xc3\xa9" * 30, "more than plain ASCII"),
        (b"two words which are long enough", "white space or control characters"),
    ],
)
def test_an_unusable_secret_is_told_without_its_text(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SecretUnavailable) as caught:
        secret_sha256(Secret(file=file), environ={})
    assert message in str(caught.value) and "words" not in str(caught.value)


def test_a_variable_that_is_not_set_is_told() -> None:
    with pytest.raises(SecretUnavailable, match="environment variable KEY is not set"):
        secret_sha256(Secret(env="KEY"), environ={"OTHER": SECRET})
