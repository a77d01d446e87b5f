"""Guesses help, and stay silent where nothing is near."""

import pytest

from ebbtide.config.suggestions import did_you_mean, nearest

KNOWN = ["slots", "shared_dir", "reserve", "tiny"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [("slot", "slots"), ("SLOTS", "slots"), ("shared-dir", "shared_dir"), ("tyni", "tiny"), ("reserved", "reserve")],
)
def test_a_misspelt_word_is_recognized(word: str, meant: str) -> None:
    assert nearest(word, KNOWN) == meant


def test_a_word_that_is_like_nothing_gets_no_guess() -> None:
    assert nearest("gpus", KNOWN) is None
    assert nearest("", KNOWN) is None
    assert nearest("x" * 10**6, KNOWN) is None
    assert did_you_mean("slots", []) is None
