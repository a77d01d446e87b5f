"""How long each stage of a hand-over takes, and each stage of a replica's start."""

from ebbtide.telemetry.buckets import STAGE_S
from ebbtide.telemetry.metric_family import Family

ASKED_TO_PARKED = "asked_to_parked"
ASKED_TO_STOPPED = "asked_to_stopped"
ASKED_TO_DRAINED = "asked_to_drained"
ASKED_TO_FREED = "asked_to_freed"
FREED_TO_GRANTED = "freed_to_granted"
GRANTED_TO_OPEN = "granted_to_open"
OPEN_TO_LANDED = "open_to_landed"
LANDED_TO_READY = "landed_to_ready"
ASKED_TO_WARM = "asked_to_warm"
GRANTED_TO_WOKEN = "granted_to_woken"

STAGES = {
    ASKED_TO_PARKED: "a job was asked to step aside, until all its ranks are parked and its slots proven free",
    ASKED_TO_STOPPED: "a job was asked to stop, until its checkpoint is published and its slots are proven free",
    ASKED_TO_DRAINED: "a replica was told to drain, until no request was left (or its limit passed)",
    ASKED_TO_FREED: "a slot's occupant was told to go, until the slot is proven free",
    FREED_TO_GRANTED: "a slot is free, until a replica is granted it; long where nobody needed it",
    GRANTED_TO_OPEN: "a replica's slots are granted, until their fences are gone",
    OPEN_TO_LANDED: "the fences are gone, until the replica reports from these slots",
    LANDED_TO_READY: "the replica's process is there, until its engine answers",
    ASKED_TO_WARM: "a replica was told to park, until it holds nothing and its slots are proven free",
    GRANTED_TO_WOKEN: "a warm replica's slots are granted, until its engine answers",
}
"""The stages in order, each with where it begins and ends."""

START_STAGES = (
    "lease",
    "model",
    "caches",
    "import",
    "process",
    "weights",
    "compile",
    "warm-up",
    "engine",  # of an engine that does not tell where its start's time went: all of these from "process" on
    "server",
)
"""Names that replicas give to the parts of their start; any other is counted as "other"."""

HANDOVER = Family(
    "ebbtide_handover_stage_seconds", "histogram", "Duration of each stage of a hand-over.", ("stage",), STAGE_S
)
REPLICA_START = Family(
    "ebbtide_replica_start_seconds",
    "histogram",
    "From the grant of its slots (or the death of its predecessor) until a replica is ready.",
    ("endpoint",),
    STAGE_S,
)
REPLICA_STAGE = Family(
    "ebbtide_replica_start_stage_seconds",
    "histogram",
    "Where a replica's start spends its time, as the replica itself measured it.",
    ("endpoint", "stage"),
    STAGE_S,
)
JOB_START = Family(
    "ebbtide_job_start_seconds",
    "histogram",
    "From the grant of its slots until every rank trains: a new gang (start) or a parked one (resume).",
    ("kind",),
    STAGE_S,
)

FAMILIES = (HANDOVER, REPLICA_START, REPLICA_STAGE, JOB_START)
