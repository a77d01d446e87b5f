"""How many of what, in words. Pure."""

_PLURAL = {"": "", "is": " are", "has": " have"}


def many(count: int, what: str, verb: str = "") -> str:
    """``1 slot``, ``2 slots``; with a verb ``1 slot is``, ``2 slots are``.

    Args:
        count: how many.
        what: one of them.
        verb: what one of them does: one that the table above knows.
    """
    if count == 1:
        return f"1 {what} {verb}" if verb else f"1 {what}"
    return f"{count} {what}s{_PLURAL[verb]}"
