"""What can go wrong with the ledger.

::

    LedgerError
    ├── LedgerUnusable   the directory cannot be used at all: a person must mend it
    ├── LedgerBroken     this epoch's log accepts nothing any more: fail static, then open a new epoch
    │   └── LedgerFenced    because a newer epoch exists: another arbiter has taken over, leave everything alone
    ├── LedgerCorrupt    records that must count cannot be read: do not decide anything from what is left
    ├── SnapshotDeclined there is no room for a snapshot: the log goes on without, try again later
    └── RecordRefused    a payload that is no JSON object or is too large: the caller's bug, the log is fine
"""


class LedgerError(Exception):
    """Base of this package's errors."""


class LedgerUnusable(LedgerError):
    """The ledger's directory is read-only, full, missing or failing."""


class LedgerBroken(LedgerError):
    """An append failed; whether its records count is unknown, and nothing may be appended to this epoch again."""


class LedgerFenced(LedgerBroken):
    """A newer epoch exists; what was not acknowledged by now may or may not count."""


class LedgerCorrupt(LedgerError):
    """A record below the offset that a later epoch fixed is damaged or gone."""


class SnapshotDeclined(LedgerError):
    """No snapshot was made, for want of space or rights; nothing has changed, and the log goes on."""


class RecordRefused(LedgerError, ValueError):
    """The payload cannot be a record; nothing was appended."""
