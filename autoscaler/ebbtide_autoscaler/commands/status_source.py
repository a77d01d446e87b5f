"""Where ``ebbtide status`` has the pool's status from: the record on this machine, the arbiter, or the ledger.

The record first: it needs no Ray. A record that is older than ``FRESH_S``, or none, as on the other machines of a
cluster: the arbiter is asked. When that does not answer either, the ledger says what was so last.
"""

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import ClusterUnreachable, join
from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.ledger.errors import LedgerError
from ebbtide.system.runtime_dir import runtime_dir
from ebbtide_autoscaler.journal.heartbeat import read_beat
from ebbtide_autoscaler.journal.status_record import read_record, subject_of

FRESH_S = 2.0  # two records: one may be late on a busy machine
ANSWER_S = 5.0
LEDGER_S = 5.0  # for reading it; a filesystem that needs longer hangs


def look(record: ClusterRecord) -> dict[str, Any]:
    """The pool's status; ``source`` says where it is from, and how old it is.

    ``source`` has ``kind``: record, arbiter or ledger, and ``age_s``: seconds since the arbiter said so; None, of the
    ledger: not known.
    """
    found = glance(record)
    if found is not None and found["source"]["age_s"] <= FRESH_S:
        return found
    return _ask(record)


def glance(record: ClusterRecord) -> dict[str, Any] | None:
    """What lies on this machine, however old it is; None: nothing that counts. Takes some milliseconds."""
    mine = subject_of(record.pool, record.shared_dir, record.address)
    found = read_record(runtime_dir(record.pool), mine)
    return None if found is None else _told(record, found.status, "record", round(found.age_s, 2))


def age_words(found: dict[str, Any]) -> str:
    """For people: how old it is; "" where that is now."""
    source = found.get("source") or {}
    if source.get("kind") != "record":
        return ""
    return f"as the arbiter left it on this machine {source['age_s']:.1f} s ago"


def _told(record: ClusterRecord, status: dict[str, Any], kind: str, age_s: float | None) -> dict[str, Any]:
    about = {"gateway": record.gateway_url, "source": {"kind": kind, "age_s": age_s}}
    return {"pool": record.pool, **status, **about}


def _ask(record: ClusterRecord) -> dict[str, Any]:
    """The status from the arbiter, or what the ledger says with the reason why the arbiter was not asked."""
    why = "the arbiter does not answer (it may be starting again); everything that runs goes on, nothing moves"
    try:
        join(record)
        found: dict[str, Any] | None = ArbiterLink().call("status", timeout_s=ANSWER_S)
    except ClusterUnreachable as error:
        lost = f"if the cluster is lost, `ebbtide up {record.config_file}` restores it"
        found, why = None, f"{error}; {lost}"
    if found is not None:
        return _told(record, found, "arbiter", 0.0)
    return _told(record, _from_the_ledger(record, why), "ledger", None)


def _from_the_ledger(record: ClusterRecord, why: str) -> dict[str, Any]:
    """The last known state; a shared directory that hangs must not hang `status`, so it is read in a thread."""
    read: Future[dict[str, Any]] = Future()

    def work() -> None:
        try:
            read.set_result(_recovered(Path(record.shared_dir) / "ledger"))
        except (LedgerError, OSError) as error:
            read.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        known = read.result(timeout=LEDGER_S)
    except FutureTimeout:
        known, why = {}, f"{why}; and the shared directory {record.shared_dir} does not answer within {LEDGER_S:g} s"
    except (LedgerError, OSError) as error:
        known, why = {}, f"{why}; and the ledger cannot be read: {error}"
    beat = read_beat(runtime_dir(record.pool))
    arbiter = {
        "frozen": why,
        "frozen_since_at_s": beat.at_s if beat is not None else None,  # its last sign of life
        "frozen_by": "",
        "epoch": beat.epoch if beat is not None else None,
    }
    return {"arbiter": arbiter, "notices": [], **known}


def _recovered(ledger: Path) -> dict[str, Any]:
    # Here, since the pool's state and its rules take 0.4 s to import, and are needed only where nothing answers.
    from ebbtide_autoscaler.core.observe.observation import Observation  # noqa: PLC0415
    from ebbtide_autoscaler.journal.records import recover  # noqa: PLC0415
    from ebbtide_autoscaler.service.pool_view import view  # noqa: PLC0415

    now_s = time.time()
    past = recover(ledger)
    return view(past.state, Observation(started_s=now_s), {}, now_s, left=past.left)
