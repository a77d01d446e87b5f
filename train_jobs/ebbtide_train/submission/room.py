"""Whether a pool can ever hold the smallest gang of a job: its slots, and the CPUs that it asks for beside them. Pure.

Ray places a gang only where it counts enough free CPUs; where there are never enough, each start would wait for a
minute and be tried again, and what Ray Train says of it is not the cause.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ebbtide.config.sections.job_section import JobSection


def cpu_fault(section: JobSection, nodes: Sequence[Mapping[str, Any]]) -> str:
    """Why the smallest gang of the job can never be placed, with the remedy; empty if it can, or if no node has GPUs.

    Args:
        section: the job.
        nodes: as ``ray.nodes()`` has them: ``Alive``, and ``Resources`` in units of one CPU or GPU.
    """
    each = section.cpus_per_worker
    alive = [node.get("Resources", {}) for node in nodes if node.get("Alive")]
    slots = [(int(one.get("GPU", 0)), float(one.get("CPU", 0))) for one in alive if one.get("GPU", 0) >= 1]
    if not each or not slots:
        return ""
    room = sum(min(gpus, int(cpus // each)) for gpus, cpus in slots)
    # Fewer slots than workers is the pool's to say: nodes may yet come.
    if room >= min(section.workers.min, sum(gpus for gpus, _ in slots)):
        return ""
    cpus = sum(cpus for _, cpus in slots)
    return (
        f"job {section.name} asks for {section.workers.min * each:g} CPUs at least ({section.workers.min} x "
        f"cpus_per_worker {each:g}), and Ray counts {cpus:g} on the nodes with GPUs: write a smaller cpus_per_worker, "
        "or give Ray more: pool.num_cpus, or `ray start --num-cpus` on the nodes of a cluster that the pool joins"
    )


def slot_fault(section: JobSection, status: Mapping[str, Any] | None) -> str:
    """Why the pool never has the slots for the smallest gang, with the remedy; empty if it has, or may grow.

    Args:
        section: the job.
        status: as the arbiter gives it; None: it does not answer, and will refuse the job itself.
    """
    if status is None or status.get("cluster"):
        return ""
    slots = sum(slot["state"] != "lost" for slot in status.get("slots", ()))
    if not slots or section.workers.min <= slots:
        return ""
    return (
        f"job {section.name} needs {section.workers.min} slots at least (workers.min), and the pool has {slots}: "
        "write a smaller workers.min"
    )
