"""One LLM that is served: its model, its replicas, its SLO and how it scales."""

import json
from hashlib import sha256
from typing import Annotated, Literal
from zoneinfo import available_timezones

from pydantic import Field, JsonValue, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ebbtide.config.sections.scalars import Count, CountOrZero, ModelPlace, Seconds, SecondsOrZero, Slug
from ebbtide.config.sections.section import Section
from ebbtide.pool.ids import EndpointName
from ebbtide.pool.spec import EndpointSpec, Scheduled, WorkloadClass

RESERVED_ENGINE_KEYS = {
    "model": "write it as `model` of the endpoint",
    "served_model_name": "the endpoint's name is what clients ask for",
    "worker_cls": "ebbtide's own worker takes the slot lock",
    "tensor_parallel_size": "write it as `gpus_per_replica` of the endpoint",
    "load_format": "write it as `load.weights` of the endpoint",
    "model_loader_extra_config": "ebbtide says there where the weights are",
    "hf_token": "models are local directories, and secrets are never written inline",
}
"""Engine arguments that are ebbtide's to set, with the reason that the error gives."""


STARTED_WITH = frozenset({"model", "gpus_per_replica", "cpus_per_replica", "engine", "engine_class"})
"""Fields of an endpoint that its replicas are started with; all others can change under a running replica."""


class ReplicasSection(Section):
    """How many replicas an endpoint may have."""

    min: CountOrZero = Field(0, description="Replicas that always run. Default 0: idle endpoints cost nothing.")
    max: Count = Field(1, validate_default=True, description="Most replicas at once. Default 1: growth is asked for.")

    @field_validator("max")
    @classmethod
    def _not_below_min(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("min", 0):
            raise PydanticCustomError(
                "range", "max is {max}, less than min, which is {min}", {"max": value, "min": info.data["min"]}
            )
        return value


class WarmSection(Section):
    """Replicas that stay when they are not wanted: alive, with nothing on any GPU."""

    replicas: CountOrZero = Field(
        0,
        description="Replicas that may stay parked in host memory instead of ending. Waking one takes seconds where a "
        "start takes a minute. Each lends memory of pool.host_memory_per_node that no job may need, and wakes only on "
        "the slots that it had. A replica that was started while this was 0 ends as before. Default 0: host memory is "
        "for parked jobs.",
    )


class SloSection(Section):
    """What clients were promised; replicas are added when it is missed."""

    ttft_s: Seconds = Field(
        2.0, description="Seconds to the first token. Default 2: about when a reader gets restless."
    )
    tpot_s: Seconds = Field(0.1, description="Seconds per further token. Default 0.1: faster than most people read.")


class LoadSection(Section):
    """How a replica gets its weights and its compiled code; a change counts from a replica's next start on."""

    weights: Literal["flat", "checkpoint", "engine"] = Field(
        "flat",
        description="flat = each GPU reads its own part from the pool's store, as it lies in memory; checkpoint = each "
        "reads the whole model; engine = vLLM reads the directory in its own way, and checks nothing. "
        "Default flat: the fewest bytes; what cannot be had is loaded in the next way, and the log says why.",
    )
    caches: bool = Field(
        True,
        description="Keep compiled code in the pool's store and restore it before a start. Default true: compiling "
        "takes longer than loading. false = caches of the node alone.",
    )


Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES_OF_WEEK = 7 * 24 * 60


class ScheduledSection(Section):
    """Replicas that are to be ready at set times, whatever was asked for before."""

    at: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")] = Field(description='Time of day: "09:00".')
    minutes: Annotated[int, Field(ge=1, le=MINUTES_OF_WEEK)] = Field(60, description="How long. Default 60.")
    replicas: Count = Field(description="At least so many are ready at that time; not more than replicas.max.")
    days: tuple[Day, ...] = Field(DAYS, min_length=1, description="Days on which it begins. Default: every day.")
    timezone: str = Field("UTC", description='An IANA time zone such as "Europe/Berlin". Default UTC.')

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in available_timezones():
            raise PydanticCustomError(
                "timezone", 'there is no time zone {zone}; one is "Europe/Berlin"', {"zone": value}
            )
        return value

    def spec(self) -> Scheduled:
        """What the policy must know of it."""
        hours, _, minutes = self.at.partition(":")
        return Scheduled(
            days=tuple(DAYS.index(day) for day in self.days),
            from_minute=60 * int(hours) + int(minutes),
            minutes=self.minutes,
            replicas=self.replicas,
            zone=self.timezone,
        )


class EndpointSection(Section):
    """An LLM that is served under its name."""

    name: Slug = Field(description="What clients write as `model` in a request.")
    model: ModelPlace = Field(
        description="Directory of the model: config.json, tokenizer.json, *.safetensors; relative to this file. Or "
        "name:tag of a model in the pool's store, see `ebbtide models`; or hf://org/name of a model of the Hugging "
        "Face hub that was imported into it (`ebbtide up --import` does that first)."
    )
    load: LoadSection = Field(LoadSection(), description="How weights and compiled code are got.")
    owner: str = Field("unassigned", min_length=1, description="Person or service that answers for it.")
    team: str = Field("unassigned", min_length=1, description="Group whose use of the pool it counts to.")
    workload_class: WorkloadClass = Field(
        WorkloadClass.NON_PREEMPTIBLE,
        alias="class",
        description="How far others may push it aside. Default non-preemptible: users wait for its answers.",
    )
    priority: int = Field(
        100, ge=-(10**6), le=10**6, description="Of endpoints the larger goes first. Default 100: any is as good."
    )
    replicas: ReplicasSection = Field(ReplicasSection(max=1), description="Least and most replicas.")
    warm: WarmSection = Field(WarmSection(), description="Replicas that stay parked when they are not wanted.")
    scheduled: tuple[ScheduledSection, ...] = Field(
        (), description="Known demand: replicas that are ready at set times of the week, before anybody asks."
    )
    gpus_per_replica: Count = Field(
        1, description="Slots of one replica, all on one node (tensor parallel). Default 1: the smallest."
    )
    slo: SloSection = Field(SloSection(), description="Latency that clients were promised.")
    target_requests: Count = Field(
        8,
        description="Requests in flight that one replica serves within its SLO: more of them want another replica. A "
        "gateway sends a replica up to twice as many at once, and never less than 64. Default 8: a cautious batch; "
        "measure yours.",
    )
    idle_after_s: SecondsOrZero = Field(
        30, description="Seconds without a request before the last replica may go. Default 30: about one start-up."
    )
    down_after_s: SecondsOrZero = Field(
        15, description="Seconds of lower demand before a replica goes. Default 15: rides out gaps in a burst."
    )
    min_uptime_factor: float = Field(
        2.0,
        ge=0,
        le=1000,
        description="A replica lives at least this many times its measured start-up. "
        "Default 2: a start must pay for itself.",
    )
    drain_s: SecondsOrZero = Field(
        30, description="Seconds at most for running requests to end when a replica goes. Default 30: a long answer."
    )
    cpus_per_replica: float = Field(
        1, ge=0, le=4096, description="Logical CPUs of one replica. Default 1: the engine's main thread."
    )
    engine: dict[str, JsonValue] = Field(
        {}, description="vLLM engine arguments by their Python names, except those that ebbtide sets itself."
    )
    engine_class: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")] | None = Field(
        None,
        description="Engine to run as module:Class; `model` is then that engine's business and not looked at. "
        "Default null: vLLM.",
    )

    @field_validator("warm")
    @classmethod
    def _not_more_than_ever_run(cls, value: WarmSection, info: ValidationInfo) -> WarmSection:
        replicas = info.data.get("replicas")
        if isinstance(replicas, ReplicasSection) and value.replicas > replicas.max:
            raise PydanticCustomError(
                "range",
                "warm.replicas is {warm}, more than replicas.max, which is {max}",
                {"warm": value.replicas, "max": replicas.max},
            )
        return value

    @field_validator("scheduled")
    @classmethod
    def _not_more_than_may_run(
        cls, value: tuple[ScheduledSection, ...], info: ValidationInfo
    ) -> tuple[ScheduledSection, ...]:
        replicas = info.data.get("replicas")
        for one in value:
            if isinstance(replicas, ReplicasSection) and one.replicas > replicas.max:
                raise PydanticCustomError(
                    "range",
                    "{count} replicas at {at} are more than replicas.max, which is {max}",
                    {"count": one.replicas, "at": one.at, "max": replicas.max},
                )
        return value

    def revision(self) -> str:
        """Digest of what a replica is started with: one that was started with anything else is to be replaced."""
        started_with = json.dumps(self.model_dump(mode="json", include=set(STARTED_WITH)), sort_keys=True)
        return sha256(started_with.encode()).hexdigest()[:12]

    def spec(self) -> EndpointSpec:
        """What the pool must know of this endpoint."""
        return EndpointSpec(
            name=EndpointName(self.name),
            owner=self.owner,
            team=self.team,
            workload_class=self.workload_class,
            priority=self.priority,
            replicas_min=self.replicas.min,
            replicas_max=self.replicas.max,
            slots_per_replica=self.gpus_per_replica,
            target_requests=self.target_requests,
            ttft_slo_s=self.slo.ttft_s,
            tpot_slo_s=self.slo.tpot_s,
            idle_after_s=self.idle_after_s,
            down_after_s=self.down_after_s,
            min_uptime_factor=self.min_uptime_factor,
            drain_s=self.drain_s,
            warm_replicas=self.warm.replicas,
            scheduled=tuple(one.spec() for one in self.scheduled),
            revision=self.revision(),
        )
