"""The kinds of processes that a result stands on, each with the modules in which such a process begins.

What a process imports by name at run time (entry points, ``python -m``, Ray actors) begins a process kind, or is listed
with the one that imports it: a static closure does not see it.
"""

from collections.abc import Mapping

PROCESSES: Mapping[str, tuple[str, ...]] = {
    "command": ("ebbtide.cli.main", "ebbtide_autoscaler.commands.pool", "ebbtide_train.submission.training_job"),
    "arbiter": ("ebbtide_autoscaler.actor.arbiter", "ebbtide_serve.actuator", "ebbtide_train.actuator"),
    "agent": ("ebbtide.agent.node_agent",),
    "gateway": ("ebbtide_serve.gateway.deployment",),
    "replica": ("ebbtide_serve.replica.deployment", "ebbtide_serve.vllm.engine"),
    "engine": (
        "ebbtide_serve.vllm_plugin",
        "ebbtide_serve.vllm.worker",
        "ebbtide_serve.vllm.load_formats",
        "ebbtide_serve.testing.process_child",
    ),
    "driver": ("ebbtide_train.run", "ebbtide_train.pool_trainer"),
    "train controller": ("ebbtide_train.controller.train_internals", "ebbtide_train.controller.leased_trainer"),
    "rank": ("ebbtide_train.worker.entry", "ebbtide_train.worker.training_rank"),
    "helper": ("ebbtide.helper.__main__", "ebbtide_testing.gpu_driver.__main__"),
    "session": (
        "ebbtide_train.run_interactive",
        "ebbtide_train.worker.interactive_rank",
        "ebbtide_train.interactive.process_tree.leader",
        "ebbtide_train.interactive.process_tree.watchdog",
    ),
    # The arbiter's step and its ledger without processes, as `make sim` plays them.
    "simulated arbiter": (
        "ebbtide_autoscaler.core.tick.tick",
        "ebbtide_autoscaler.core.observe.gateway_routes",
        "ebbtide_autoscaler.core.observe.settling",
        "ebbtide_autoscaler.core.observe.traffic",
        "ebbtide_autoscaler.core.observe.workload_orders",
        "ebbtide_autoscaler.core.tick.instructions",
        "ebbtide_autoscaler.journal.records",
        "ebbtide_autoscaler.journal.recovery",
        "ebbtide_autoscaler.process.steady_clock",
        "ebbtide_autoscaler.cluster.size",
        "ebbtide_autoscaler.core.demand.demand_watch",
        "ebbtide.ledger.epoch_log",
        "ebbtide.ledger.reader",
        "ebbtide_testing.cluster.fake_cluster",
        "ebbtide_testing.cluster.fake_gang",
        "ebbtide_testing.cluster.fake_gateway",
        "ebbtide_testing.cluster.fake_link",
        "ebbtide_testing.cluster.virtual_clock",
    ),
    "simulator": ("ebbtide_simulator.play", "ebbtide_simulator.scenes.given"),
}

POOL = (
    "agent",
    "arbiter",
    "command",
    "driver",
    "engine",
    "gateway",
    "rank",
    "replica",
    "train controller",
)
"""All of a running pool, without sessions."""
