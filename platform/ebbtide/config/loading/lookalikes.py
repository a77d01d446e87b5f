"""Characters that look like another one, or like nothing, and come along when text is copied from a page or a chat."""

import re

_SPACES = {
    "\u00a0": "non-breaking space",
    "\u202f": "narrow non-breaking space",
    "\u2007": "figure space",
    "\u3000": "ideographic space",
    **{"\u2028": "line separator", "\u2029": "paragraph separator", "\u0085": "next line"},
    **{chr(code): "typographic space" for code in (*range(0x2000, 0x2007), *range(0x2008, 0x200B), 0x205F, 0x1680)},
}
_INVISIBLE = {
    "\u200b": "zero-width space",
    "\u200c": "zero-width non-joiner",
    "\u200d": "zero-width joiner",
    "\u2060": "word joiner",
    "\ufeff": "byte order mark",
    "\u00ad": "soft hyphen",
    "\u200e": "left-to-right mark",
    "\u200f": "right-to-left mark",
}
_QUOTES = dict.fromkeys(
    "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2018\u2019\u201a\u201b\uff02\uff07", "typographic quotation mark"
)
_SIGNS = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212\uff0d", "dash"),
    **{"\uff1a": "full-width colon", "\uff0c": "full-width comma"},
}
_UNSEEN = re.compile(f"[{''.join({**_SPACES, **_INVISIBLE})}]")
_QUOTED = re.compile(f"^[{''.join(_QUOTES)}]|[{''.join(_QUOTES)}]$")
_ANY = re.compile(f"[{''.join({**_SPACES, **_INVISIBLE, **_QUOTES, **_SIGNS})}]")


def in_scalar(source: str) -> int | None:
    """Where, in a name or value that stands in the file without quotation marks, such a character is; None: nowhere."""
    found = _UNSEEN.search(source) or _QUOTED.search(source)
    return found.start() if found else None


def in_line(line: str) -> int | None:
    """Where the first one is in a line that is no YAML; a tab among the spaces before it counts too."""
    before = line[: len(line) - len(line.lstrip())]
    if "\t" in before:
        return before.index("\t")
    found = _ANY.search(line)
    return found.start() if found else None


def remedy(character: str) -> str:
    """What it is and what to type instead."""
    code = f"U+{ord(character):04X}"
    if character == "\t":
        return f"a tab ({code}) stands where spaces must: type spaces"
    if character in _SPACES:
        return (
            f"a {_SPACES[character]} ({code}) stands there: type a plain space, or put a text that needs it in quotes"
        )
    if character in _INVISIBLE:
        return f"an invisible character ({_INVISIBLE[character]}, {code}) stands there: delete it"
    if character in _QUOTES:
        return f"a typographic quotation mark ({code}) stands there: type a plain \" or '"
    return f"a {_SIGNS[character]} ({code}) stands there: type the plain sign of the keyboard"
