"""The last lines that a worker printed, for the person who asks why its gang failed.

Read from the files that Ray redirects a worker's output to, on the worker's node; its process may be gone.
"""

import os
from collections.abc import Iterable
from pathlib import Path

TAIL_CHARS = 2000  # of all together: what a status can show
_READ_BYTES = 16 << 10  # the lines that are dropped below are short
_RAY_MARKS = (":actor_name:", ":task_name:", ":job_id:")  # lines by which Ray's log monitor tells speakers apart


def tail(paths: Iterable[str], *, chars: int = TAIL_CHARS) -> str:
    """The end of each file, whole lines, ``chars`` in all at most; what cannot be read is left out."""
    texts = [text for path in paths if (text := _end_of(Path(path)))]
    share = chars // max(1, len(texts))
    return "\n".join(cut_tail(text, share) for text in texts)


def cut_tail(text: str, chars: int) -> str:
    """The end of ``text``, from the beginning of a line on if one begins there."""
    if len(text) <= chars:
        return text
    last = text[len(text) - chars :]
    return last.partition("\n")[2] or last


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _READ_BYTES))
            raw = file.read()
    except OSError:
        return ""
    lines = raw.decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.startswith(_RAY_MARKS))
