"""Which revision of its endpoint a replica ran that failed, and whether another one is in force since."""

from dataclasses import dataclass

from ebbtide.ledger.sqlite_index import IndexedRecord, LedgerIndex

FAILURES = frozenset({"seat_stopped", "seat_died"})
LOOKED_AT = 100_000  # declarations of an endpoint, or grants of a seat: more than any ledger keeps


@dataclass(frozen=True, slots=True)
class Replaced:
    """The revision that a replica ran, and the one that was put into force later, at ``at_s`` (since 1970)."""

    revision: str
    by: str
    at_s: float


class SeatRevisions:
    """Answers from one index, which must live on; each endpoint is looked up once."""

    def __init__(self, index: LedgerIndex) -> None:
        self._index = index
        self._declared: dict[str, list[IndexedRecord]] = {}
        self._granted: dict[str, list[IndexedRecord]] = {}

    def replaced(self, record: IndexedRecord) -> Replaced | None:
        """Of a replica's failure: what replaced the revision that it ran; None: that is in force, or not known."""
        body = record.payload.get("body")
        if not isinstance(body, dict) or body.get("kind") not in FAILURES or not isinstance(body.get("seat"), str):
            return None
        seat = str(body["seat"])
        declared = self._of(self._declared, seat.rpartition("/")[0], "endpoint_declared")
        granted = _last_before(self._of(self._granted, seat, "grant_seat"), record)
        ran = _last_before(declared, granted or record)
        if ran is None or _revision(declared[-1]) == _revision(ran):
            return None
        later = (one for one in declared if _at(one) > _at(ran) and _revision(one) != _revision(ran))
        since = next(later)
        return Replaced(_revision(ran), _revision(declared[-1]), since.at_s)

    def _of(self, known: dict[str, list[IndexedRecord]], subject: str, kind: str) -> list[IndexedRecord]:
        if subject not in known:
            known[subject] = self._index.events(limit=LOOKED_AT, subject=subject, kinds=(kind,))
        return known[subject]


def _at(record: IndexedRecord) -> tuple[int, int]:
    return record.epoch, record.seq


def _last_before(records: list[IndexedRecord], record: IndexedRecord) -> IndexedRecord | None:
    return next((one for one in reversed(records) if _at(one) < _at(record)), None)


def _revision(record: IndexedRecord) -> str:
    body = record.payload.get("body")
    spec = body.get("spec") if isinstance(body, dict) else None
    return str(spec.get("revision") or "") if isinstance(spec, dict) else ""
