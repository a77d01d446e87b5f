"""One training job: what runs, on how many workers, and how it steps aside."""

from typing import Annotated

from pydantic import Field, JsonValue, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ebbtide.config.sections.scalars import Count, CountOrZero, RelativePath, Seconds, SecondsOrZero, SizeBytes, Slug
from ebbtide.config.sections.section import Section
from ebbtide.pool.ids import JobName
from ebbtide.pool.spec import JobSpec, WorkloadClass


class WorkersSection(Section):
    """How many workers a job can train with."""

    min: Count = Field(1, description="Fewest workers it can train with. Default 1: it starts as soon as it can.")
    max: Count = Field(description="Most workers it can use.")

    @field_validator("max")
    @classmethod
    def _not_below_min(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("min", 1):
            raise PydanticCustomError(
                "range", "max is {max}, less than min, which is {min}", {"max": value, "min": info.data["min"]}
            )
        return value


class JobSection(Section):
    """A training job of the pool."""

    name: Slug = Field(description="Name of the job; submitted again under it, it goes on from its checkpoint.")
    entrypoint: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")] = Field(
        description='Train function to import, as "module:function".'
    )
    args: dict[str, JsonValue] = Field({}, description="Given to the train function as they are.")
    working_dir: RelativePath | None = Field(
        None, description="Directory put first on the import path of every worker. Relative to this file."
    )
    owner: str = Field("unassigned", min_length=1, description="Person or service that answers for it.")
    team: str = Field("unassigned", min_length=1, description="Group whose use of the pool it counts to.")
    workload_class: WorkloadClass = Field(
        WorkloadClass.PREEMPTIBLE,
        alias="class",
        description="How far others may push it aside. Default preemptible: a preemption loses no step.",
    )
    priority: int = Field(
        0,
        ge=-(10**6),
        le=10**6,
        description="Of jobs the larger goes first; endpoints go before all of them. Default 0: any is as good.",
    )
    workers: WorkersSection = Field(description="Fewest and most workers; one slot each.")
    global_batch: Count = Field(description="Samples per step, the same at any number of workers.")
    micro_batch: Count = Field(description="Samples per forward pass of one worker; the rest is accumulated.")
    seed: int = Field(
        0, ge=0, lt=2**32, description="Of parameters, order of samples and dropout. Default 0: any is as good."
    )
    grace_s: Seconds = Field(
        30,
        description='Seconds from "step aside" to kill. Default 30: several steps and one checkpoint of a small model.',
    )
    min_runtime_s: SecondsOrZero = Field(
        20,
        description="Seconds of training after a start before it may be preempted. Default 20: what a restart costs.",
    )
    max_preemptions_per_h: CountOrZero = Field(
        30, description="Times per hour that it may be asked to step aside. Default 30: once in two minutes."
    )
    in_place: bool = Field(
        True,
        description="May park in place, its state in host memory; on machines without GPUs for now. Default true: "
        "seconds instead of a restart.",
    )
    checkpoint_every_s: Seconds = Field(
        60, description="Seconds between two published checkpoints. Default 60: what a crash may cost."
    )
    keep_checkpoints: Count = Field(
        2,
        description="Newest checkpoints that stay. Default 2: the one that counts, and one that a slow reader may "
        "still have open.",
    )
    cpus_per_worker: float = Field(
        1, ge=0, le=4096, description="Logical CPUs of one worker. Default 1: its main thread."
    )
    host_memory_per_worker: SizeBytes = Field(
        2**30,
        description='Host memory that one parked worker needs, in bytes or "1 GiB": parameters, gradients and '
        "optimizer state. Default 1 GiB: a model of 60 million parameters with Adam.",
    )
    max_failures: CountOrZero = Field(
        3,
        description="How often it is tried again after crashes in a row without a step. Default 3: no accident repeats "
        "so often.",
    )
    startup_timeout_s: Seconds = Field(
        1800,
        description="Seconds that its train function may take to begin its steps: to import, and to load data. Default "
        "1800: ten minutes of loading are usual, half an hour is a hang.",
    )
    bucket_cap_mb: float = Field(
        25, gt=0, le=4096, description="Size of DDP's gradient buckets in MiB. Default 25: PyTorch's own."
    )

    @field_validator("global_batch")
    @classmethod
    def _a_sample_for_every_worker(cls, value: int, info: ValidationInfo) -> int:
        workers = info.data.get("workers")
        if workers is not None and value < workers.max:
            raise PydanticCustomError(
                "global_batch",
                "global_batch is {batch}, less than workers.max, which is {max}: some workers would have no sample",
                {"batch": value, "max": workers.max},
            )
        return value

    @field_validator("micro_batch")
    @classmethod
    def _within_the_batch(cls, value: int, info: ValidationInfo) -> int:
        batch = info.data.get("global_batch")
        if batch is not None and value > batch:
            raise PydanticCustomError(
                "micro_batch",
                "micro_batch is {micro}, more than global_batch, which is {batch}",
                {"micro": value, "batch": batch},
            )
        return value

    def spec(self) -> JobSpec:
        """What the pool must know of this job."""
        return JobSpec(
            name=JobName(self.name),
            owner=self.owner,
            team=self.team,
            workload_class=self.workload_class,
            priority=self.priority,
            workers_min=self.workers.min,
            workers_max=self.workers.max,
            grace_s=self.grace_s,
            min_runtime_s=self.min_runtime_s,
            max_preemptions_per_h=self.max_preemptions_per_h,
            in_place=self.in_place,
            host_bytes_per_worker=self.host_memory_per_worker,
            max_failures=self.max_failures,
            startup_timeout_s=self.startup_timeout_s,
        )
