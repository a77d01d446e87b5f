"""Who keeps a pool still. Pure, and imports nothing: `ebbtide status` shows it within half a second."""

from enum import StrEnum


class FreezeCause(StrEnum):
    """What keeps a pool from moving."""

    PERSON = "person"
    LEDGER = "ledger"
    PROMISE = "promise"
    START = "start"
