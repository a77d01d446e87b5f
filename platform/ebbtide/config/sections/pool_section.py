"""The pool itself: which GPUs, on which Ray cluster, and the directory that all of it shares."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ebbtide.config.sections.scalars import Count, CountOrZero, RelativePath, Seconds, SecondsOrZero, SizeBytes, Slug
from ebbtide.config.sections.section import Section
from ebbtide.config.sections.storage_section import StorageSection


def _slots(value: object) -> object:
    if value == "all" or (type(value) is int and 1 <= value <= 2**53):
        return value
    quoted = " (leave out the quotes)" if isinstance(value, str) and value.strip().isdigit() else ""
    raise PydanticCustomError("slots", 'expected a whole number from 1, or "all"{quoted}', {"quoted": quoted})


class PoolMode(StrEnum):
    """What becomes of a decision."""

    MANAGE = "manage"
    OBSERVE = "observe"


class PoolSection(Section):
    """One pool of GPUs on one Ray cluster."""

    name: Slug = Field(description="Name of the pool; jobs say by it which pool they go to.")
    ray_address: str | None = Field(
        None,
        min_length=1,
        description="Address of a Ray cluster to join; null = `up` starts one on this machine.",
    )
    slots: Annotated[int | Literal["all"], BeforeValidator(_slots)] = Field(
        "all",
        description="GPUs of the pool. A number = so many logical GPUs of a cluster that `up` starts on this machine; "
        '"all" = every GPU of the cluster joined or started, and on a machine without any as many logical ones as its '
        'memory and cores allow. Default "all": nothing bought stays idle.',
    )
    num_cpus: Count | None = Field(
        None,
        description="Logical CPUs of a cluster that `up` starts; null = as many as the machine has, or more: what a "
        "workload on every slot asks for.",
    )
    shared_dir: RelativePath | None = Field(
        None,
        description="Directory that every node sees: ledger, checkpoints, occupancy logs. Relative to this file. "
        "Required, except in a file that only submits jobs to a running pool.",
    )
    mode: PoolMode = Field(
        PoolMode.MANAGE,
        description="manage = decide and act; observe = decide and write down what would be done, and move nothing. "
        "Default manage: that is what a pool is for.",
    )
    reserve: CountOrZero = Field(
        0,
        description="Slots that no job ever gets, so that a replica can start at once. "
        "Default 0: jobs step aside within seconds.",
    )
    host_memory_per_node: SizeBytes = Field(
        4 * 2**30,
        description='Host memory per node for the state of parked workers, in bytes or "8 GiB". Default 4 GiB: four '
        "workers of the default size; keep it below Ray's memory threshold less the object store.",
    )
    loaders_max: Count = Field(
        8,
        description="Ranks of replicas that read weights at once, over all nodes; others wait for their turn. What "
        "vLLM reads from a directory in its own way is not counted. Default 8: what a shared filesystem feeds at full "
        "speed; more would only make all of them late.",
    )
    nodes_min: Count = Field(
        1, description="Nodes that the pool keeps where `nodes_max` is given. Default 1: a first request finds a GPU."
    )
    nodes_max: Count | None = Field(
        None,
        description="Nodes that the pool may have at most, those started by hand too: it then asks Ray's cluster "
        "autoscaler for more when workloads lack slots, and lets empty ones go. null = its nodes are what they are.",
    )
    node_gpus: Count | None = Field(
        None, description="GPUs of a node that Ray's cluster autoscaler starts. Required where `nodes_max` is given."
    )
    nodes_grow_after_s: SecondsOrZero = Field(
        30.0,
        description="Seconds for which slots must have lacked before a node is asked for. Default 30: jobs step aside "
        "and replicas start within that time, and a node takes minutes.",
    )
    nodes_idle_after_s: Seconds = Field(
        600.0,
        description="Seconds for which a node must have had nobody before it goes. Default 600: some times what "
        "starting one takes.",
    )
    storage: StorageSection = Field(
        StorageSection(), description="How much of the shared directory may be taken, and how fast."
    )

    @field_validator("slots", "num_cpus")
    @classmethod
    def _only_for_a_started_cluster(cls, value: object, info: ValidationInfo) -> object:
        if value not in (None, "all") and info.data.get("ray_address") is not None:
            raise PydanticCustomError(
                "joined_cluster", "only a cluster that `up` starts can be sized here, and ray_address joins another one"
            )
        return value
