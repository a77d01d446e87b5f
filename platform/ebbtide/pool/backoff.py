"""How long to wait before something that failed is tried again."""

BACKOFF_MAX_S = 60.0  # about what a restart with a download costs: waiting longer saves nothing


def backoff_s(failures: int, at_most_s: float = BACKOFF_MAX_S) -> float:
    """Seconds to wait after so many failures in a row: 2, doubled each time, up to a bound; 0 after none."""
    return (
        min(2.0**failures, at_most_s)  # guard: the pause after failures has a bound
        if failures
        else 0.0
    )
