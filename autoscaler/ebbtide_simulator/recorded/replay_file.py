"""What a replay of a recorded ledger has other than it was: the file of ``ebbtide simulate FILE --ledger FOLDER``.

An empty mapping, ``{}``, plays it again as it was.
"""

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from ebbtide.config.sections.policy_section import PolicySection
from ebbtide.config.sections.scalars import Seconds, SecondsOrZero, SizeBytes
from ebbtide.config.sections.section import Section

_AS_IT_WAS = "Default null: as it was."


class ReplayPool(Section):
    """The pool's machines."""

    nodes: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None, description=f"Those beyond the recorded ones are there all the time. {_AS_IT_WAS}"
    )
    gpus_per_node: Annotated[int, Field(ge=1, le=72)] | None = Field(None, description=_AS_IT_WAS)
    host_memory: SizeBytes | None = Field(
        None, description=f"What parked jobs and replicas may use on each node. {_AS_IT_WAS}"
    )
    reserve: Annotated[int, Field(ge=0)] | None = Field(None, description=_AS_IT_WAS)


class ReplayEndpoint(Section):
    """An endpoint of the recording."""

    name: str
    replicas_min: Annotated[int, Field(ge=0)] | None = Field(None, description=_AS_IT_WAS)
    replicas_max: Annotated[int, Field(ge=1)] | None = Field(None, description=_AS_IT_WAS)
    target_requests: Annotated[int, Field(ge=1)] | None = Field(
        None, description=f"That one replica serves at once within its promise: how fast replicas are. {_AS_IT_WAS}"
    )
    ttft_slo_s: Seconds | None = Field(None, description=_AS_IT_WAS)
    warm_replicas: Annotated[int, Field(ge=0)] | None = Field(None, description=_AS_IT_WAS)
    stay_s: Seconds = Field(
        6.0,
        description="How long a request is at its replica, where the ledger does not say. Default 6: 200 tokens of "
        "30 ms.",
    )


class ReplayTimes(Section):
    """How long moves take."""

    start_s: Seconds | None = Field(None, description="Of a replica. Default null: as measured.")
    cold_s: Seconds | None = Field(None, description="Of the first one of a node or an endpoint. Likewise.")
    wake_s: Seconds | None = Field(None, description="Of a warm replica. Likewise.")
    gang_start_s: Seconds | None = Field(None, description="Until a job's workers train. Likewise.")
    park_s: SecondsOrZero | None = Field(None, description="From the safe point until slots are free. Likewise.")
    resume_s: SecondsOrZero | None = Field(None, description="From the slots until a parked job trains. Likewise.")
    save_s: SecondsOrZero | None = Field(None, description="From the safe point until a job has stopped. Likewise.")


class ReplayRun(Section):
    """How the run goes."""

    tick_s: Annotated[float, Field(ge=0.1, le=600)] = Field(1.0, description="Between two decisions. Default 1.")
    warm_up_s: SecondsOrZero = Field(0.0, description="0: a replay begins with what was there, and all of it counts.")
    hours_max: Annotated[float, Field(ge=1 / 60)] | None = Field(
        None, description="Of the recording. Default null: all of it."
    )

    @field_validator("warm_up_s")
    @classmethod
    def _none(cls, warm_up_s: float) -> float:
        if warm_up_s:
            raise ValueError(
                "a replay has no warm-up, for it begins with what was there and stands beside all that happened: "
                "begin later instead (--ledger FOLDER:FACTOR:DAY)"
            )
        return warm_up_s


class ReplayFile(Section):
    """The whole file."""

    pool: ReplayPool = ReplayPool()
    endpoints: tuple[ReplayEndpoint, ...] = ()
    policy: PolicySection = Field(
        PolicySection(), description="Figures of the policy; those that are not named are as the pool had them last."
    )
    times: ReplayTimes = ReplayTimes()
    run: ReplayRun = ReplayRun()

    @model_validator(mode="after")
    def _names(self) -> "ReplayFile":
        names = [endpoint.name for endpoint in self.endpoints]
        if len(set(names)) < len(names):
            raise ValueError("two endpoints have one name")
        return self
