"""The cause of a failure in one line, out of whatever text it came in."""

import re

CAUSE_CHARS = 300  # four lines of a terminal; `logs` and `why` have more
_FRAME = re.compile(r"^(?:\s|Traceback \(most recent call last\):|File \")|^\s*[\^~]+\s*$")
_PREFIXED = re.compile(r"^\([^)]*\bpid=\d+[^)]*\)\s*")  # as Ray marks what a process has printed
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_CLASS = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*: ")
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Misuse|Warning)\b")


def cause(text: str) -> str:
    """One line: a sentence as it is, of a traceback the exception that ended it; "" for nothing.

    Of several lines the first one counts, for what the pool says begins with the cause. A text with a traceback has it
    at its end: there the last line that names an exception is taken, with what stands before the traceback on its
    first line.
    """
    lines = [_CONTROL.sub(" ", _PREFIXED.sub("", _COLOUR.sub("", line))).rstrip() for line in text.splitlines()]
    told = [line.strip() for line in lines if line.strip()]
    if not told:
        return ""
    line = told[0]
    start = next((at for at, one in enumerate(lines) if "Traceback (most recent call last):" in one), None)
    if start is not None:
        raised = [one.strip() for one in lines[start + 1 :] if one.strip() and not _FRAME.match(one)]
        named = [one for one in raised if _RAISED.match(one)]
        before = lines[start].partition("Traceback (most recent call last):")[0].strip().rstrip(":")
        first = next((one.strip() for one in lines[:start] if one.strip()), before).rstrip(":")
        last = named[-1] if named else raised[-1] if raised else ""
        last = "" if _is_told(last, first) else last
        line = ": ".join(part for part in (first, last) if part) or line
    line = " ".join(line.split())
    return line if len(line) <= CAUSE_CHARS else line[: CAUSE_CHARS - 3].rstrip() + "..."


def _is_told(raised: str, told: str) -> bool:
    """Whether a line names the exception already, or the one within it: ``RankFailed: ValueError: no data``."""
    while _CLASS.match(raised):
        if _RAISED.match(raised) and raised in told:
            return True
        raised = raised.partition(": ")[2]
    return False
