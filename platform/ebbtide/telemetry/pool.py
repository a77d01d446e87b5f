"""Slots, nodes and replicas, as the arbiter's ledger has them."""

from ebbtide.telemetry.metric_family import Family

SLOTS = Family(
    "ebbtide_slots",
    "gauge",
    "Slots by state, and by what they are used for: serving, training, or nothing (-).",
    ("state", "used_for"),
)
DRAINING_SLOTS = Family("ebbtide_draining_slots", "gauge", "Slots on nodes that drain: nothing is granted there.")
NODES = Family("ebbtide_nodes", "gauge", "Nodes of the pool by what may happen there.", ("state",))
AGENTS = Family("ebbtide_agents_heard", "gauge", "Node agents that reported within the last 5 s.")
AGENT_AGE = Family(
    "ebbtide_agent_oldest_report_seconds", "gauge", "Age of the oldest last report among the agents of living nodes."
)
GATEWAYS = Family("ebbtide_gateways_heard", "gauge", "Gateways that reported within the last 5 s.")
HOST_MEMORY = Family("ebbtide_host_memory_bytes", "gauge", "Host memory that nodes lend to parked workers.", ("node",))
PARKED_MEMORY = Family("ebbtide_parked_bytes", "gauge", "Host memory lent to parked workers now.", ("node",))
WARM_MEMORY = Family("ebbtide_warm_bytes", "gauge", "Host memory lent to warm replicas now.", ("node",))
REPLICAS = Family(
    "ebbtide_replicas",
    "gauge",
    "Seats that have slots, or a warm replica, by endpoint and state.",
    ("endpoint", "state"),
)
REPLICAS_WANTED = Family(
    "ebbtide_replicas_wanted", "gauge", "Replicas that the policy aims at, by endpoint.", ("endpoint",)
)
REPLICA_STARTS = Family("ebbtide_replica_starts_total", "counter", "Replicas that became ready.", ("endpoint",))
REPLICA_WAKES = Family("ebbtide_replica_wakes_total", "counter", "Warm replicas that became ready.", ("endpoint",))
REPLICA_LOADS = Family(
    "ebbtide_replica_loads_total",
    "counter",
    "Ranks of replicas that became ready, by how they got their weights.",
    ("endpoint", "way"),
)
REPLICA_FAILURES = Family(
    "ebbtide_replica_start_failures_total", "counter", "Replica starts that did not come to ready.", ("endpoint",)
)
REPLICA_DEATHS = Family("ebbtide_replica_deaths_total", "counter", "Ready replicas that died.", ("endpoint",))

FAMILIES = (
    SLOTS,
    DRAINING_SLOTS,
    NODES,
    AGENTS,
    AGENT_AGE,
    GATEWAYS,
    HOST_MEMORY,
    PARKED_MEMORY,
    WARM_MEMORY,
    REPLICAS,
    REPLICAS_WANTED,
    REPLICA_STARTS,
    REPLICA_WAKES,
    REPLICA_LOADS,
    REPLICA_FAILURES,
    REPLICA_DEATHS,
)
