"""The arbiter itself: its ticks, its ledger, and whether anything moves."""

from ebbtide.telemetry.buckets import FSYNC_S, TICK_S
from ebbtide.telemetry.metric_family import Family

FROZEN = Family(
    "ebbtide_frozen",
    "gauge",
    "1 while nothing moves, by who stopped it: a person, the ledger, a broken promise, or the arbiter's start.",
    ("by",),
)
FROZEN_SINCE = Family("ebbtide_frozen_since_timestamp_seconds", "gauge", "Since when nothing moves; 0: it moves.")
MODE = Family("ebbtide_mode", "gauge", "1 for the mode in force: manage, or observe (decide, move nothing).", ("mode",))
EPOCH = Family("ebbtide_arbiter_epoch", "gauge", "Epoch of the ledger; it grows with every start and every snapshot.")
STARTS = Family(
    "ebbtide_arbiter_starts_total", "counter", "Arbiter processes that took over the ledger, since it began."
)
EVENTS = Family("ebbtide_events_total", "counter", "Events in the ledger, moves and facts, by kind.", ("kind",))
REFUSED = Family(
    "ebbtide_refused_events_total",
    "counter",
    "Events that the transition tables or a promise refused, by kind, since this arbiter started.",
    ("kind",),
)
WAITING = Family("ebbtide_waiting_workloads", "gauge", "Workloads that wait for something; `ebbtide why` says what.")
NODES_WANTED = Family(
    "ebbtide_nodes_wanted", "gauge", "Nodes that the cluster should have; without `pool.nodes_max` those that it has."
)
CLUSTER_UNTOLD = Family("ebbtide_cluster_untold", "gauge", "1 while Ray's autoscaler could not be told of that.")
TICK = Family("ebbtide_tick_seconds", "histogram", "A whole tick: decide, journal, act.", (), TICK_S)
STEP = Family("ebbtide_step_seconds", "histogram", "The pure part of a tick: facts and decision.", (), TICK_S)
TICK_FAILURES = Family("ebbtide_tick_failures_total", "counter", "Ticks that ended in an error; each is in the log.")
LEDGER_COMMIT = Family(
    "ebbtide_ledger_commit_seconds", "histogram", "From an append to its acknowledgement as durable.", (), FSYNC_S
)
LEDGER_FSYNC = Family("ebbtide_ledger_fsync_seconds", "histogram", "One fsync of the ledger's file.", (), FSYNC_S)
LEDGER_BYTES = Family("ebbtide_ledger_written_bytes_total", "counter", "Bytes written since this arbiter started.")
LEDGER_PENDING = Family("ebbtide_ledger_pending_appends", "gauge", "Appends that are not yet durable.")
LEDGER_PENDING_AGE = Family("ebbtide_ledger_oldest_pending_seconds", "gauge", "Age of the oldest of them; 0: none.")

FAMILIES = (
    FROZEN,
    FROZEN_SINCE,
    MODE,
    EPOCH,
    STARTS,
    EVENTS,
    REFUSED,
    WAITING,
    NODES_WANTED,
    CLUSTER_UNTOLD,
    TICK,
    STEP,
    TICK_FAILURES,
    LEDGER_COMMIT,
    LEDGER_FSYNC,
    LEDGER_BYTES,
    LEDGER_PENDING,
    LEDGER_PENDING_AGE,
)
