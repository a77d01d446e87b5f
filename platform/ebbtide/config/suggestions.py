"""Guesses what a misspelt word was meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches

CUTOFF = 0.6  # difflib's own default: one or two wrong letters in a short word


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like ``word``, or None when none is near; case and hyphens do not count."""
    plain, by_plain = _plain(word[:100]), {_plain(candidate): candidate for candidate in known}
    found = get_close_matches(plain, list(by_plain), n=1, cutoff=CUTOFF)
    # difflib rates two letters in the wrong order as low as two wrong ones.
    found = found or [candidate for candidate in by_plain if sorted(candidate) == sorted(plain)]
    return by_plain[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A question for the user, or None when nothing is near."""
    found = nearest(word, known)
    return None if found is None else f"did you mean {found!r}?"


def _plain(word: str) -> str:
    return word.lower().replace("-", "_").replace(" ", "_")
