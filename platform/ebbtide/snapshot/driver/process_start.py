"""Which process a pid means: the number is reused, the number with its start time is not (until the next boot)."""

from pathlib import Path

_STATE_FIELD, _START_FIELD = 3 - 3, 22 - 3  # proc(5); fields from 3 on follow the command's closing bracket


def started_ticks(pid: int) -> int | None:
    """Start time of process ``pid`` in clock ticks since boot; None if there is none, or only its zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name may hold spaces and brackets: what counts begins after the last closing one.
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE_FIELD] in ("Z", "X") else int(fields[_START_FIELD])
