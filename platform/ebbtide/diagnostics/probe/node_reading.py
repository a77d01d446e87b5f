"""Everything about one workload that must be read on the node itself. What comes back can travel between nodes."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.probe.criu_facts import program_fact, ray_worker_fact, tree_facts
from ebbtide.diagnostics.probe.disk_facts import disk_fact
from ebbtide.diagnostics.probe.fact import Fact, hindering
from ebbtide.diagnostics.probe.gpu_facts import gpu_facts
from ebbtide.diagnostics.probe.helper_facts import ask_helper
from ebbtide.diagnostics.probe.memory_facts import memory_facts
from ebbtide.diagnostics.probe.process_facts import Process, process_facts, read_tree
from ebbtide.snapshot import nccl
from ebbtide.snapshot.rates_file import RatesUnusable, read_rates
from ebbtide.snapshot.tiers import Means, Rates

AGAIN = "measure again: ebbtide probe --rehearse"


@dataclass(frozen=True, slots=True)
class NodeAsk:
    """What is asked about one node.

    Attributes:
        pids: of the workload's ranks there, by rank; empty: it does not run, and only the node is looked at.
        world: its ranks on all nodes together.
        is_session: an interactive workload: CRIU may take it; a job's ranks are Ray workers.
        shared_dir: of the pool; "" if none is named.
        runtime_dir: of the pool, the same path on each node; "" if there is none.
        helper: where the node's helper listens.
    """

    pids: Mapping[int, int]
    world: int
    is_session: bool
    shared_dir: str
    runtime_dir: str
    helper: str


@dataclass(frozen=True, slots=True)
class NodeReading:
    """What was read.

    Attributes:
        name: of the machine, for people.
        host_free_bytes: that parked state may take there; None: not known.
        disk_free_bytes: of the shared directory; None: not known.
        gpus: of the node.
        process_bytes: private memory of the workload's processes there.
        rates: measured there.
        facts: in the order of subjects.
    """

    name: str
    host_free_bytes: int | None
    disk_free_bytes: int | None
    gpus: int
    process_bytes: int
    rates: Rates
    facts: tuple[Fact, ...]


def read_node(ask: NodeAsk, machine: Machine | None = None) -> NodeReading:
    """Read this node. Changes nothing, and takes seconds at most: what may hang has a deadline."""
    machine = machine or Machine()
    said, about_helper = ask_helper(ask.helper)
    gpus, about_gpus = gpu_facts(machine, said.driver)
    host_free, about_memory = memory_facts(machine)
    disk_free, about_disk = disk_fact(ask.shared_dir)
    rates, about_rates = _rates(ask.runtime_dir)
    trees = [read_tree(machine, pid) for pid in ask.pids.values()]
    facts = [*about_gpus, *about_memory, about_disk, *about_rates]
    if gpus or ask.is_session:  # a job on a node without GPUs needs none
        facts.append(about_helper)
    facts += [_gone(rank, pid) for (rank, pid), tree in zip(ask.pids.items(), trees, strict=True) if not tree]
    # Ranks of a job set these themselves, which /proc does not show: there stands what they were started with.
    facts += process_facts(trees, gpus=gpus, world=ask.world, told={} if ask.is_session else nccl.DEFAULTS)
    if ask.is_session:
        facts.append(program_fact(said, machine.environ, Path.cwd()))
        facts += tree_facts(_roots(trees))
    else:
        facts.append(ray_worker_fact())
    return NodeReading(
        name=socket.gethostname(),
        host_free_bytes=host_free,
        disk_free_bytes=disk_free,
        gpus=gpus,
        process_bytes=sum(process.own_bytes for tree in trees for process in tree),
        rates=rates,
        facts=tuple(facts),
    )


def _roots(trees: list[tuple[Process, ...]]) -> list[int]:
    return [tree[0].pid for tree in trees if tree]


def _gone(rank: int, pid: int) -> Fact:
    what = f"rank {rank} (process {pid}) has ended since the pool was asked, or is out of sight of this container"
    return Fact("process.gone", what, f"/proc/{pid}", pid, hindering(*Means), "probe again once it runs")


def _rates(folder: str) -> tuple[Rates, tuple[Fact, ...]]:
    if not folder:
        return Rates(), ()
    try:
        rates = read_rates(Path(folder))
    except RatesUnusable as error:
        return Rates(), (Fact("rates.file", str(error), os.path.join(folder, "rates.json"), None, remedy=AGAIN),)
    return rates, ()
