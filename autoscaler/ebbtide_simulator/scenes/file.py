"""What a simulation is of: the pool, the endpoints that traces are given to, which jobs are kept, the policy."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ebbtide.config.sections.policy_section import PolicySection
from ebbtide.config.sections.scalars import Seconds, SecondsOrZero, SizeBytes
from ebbtide.config.sections.section import Section
from ebbtide_simulator.model.engine import ENGINES, Engine
from ebbtide_simulator.run.mix import Mix
from ebbtide_simulator.run.run import DOWN_AFTER_S

GPU_HOURS_EACH_MIN = 1.0  # a GPU that fails each hour is hardly ever back; and all failures of a run are drawn first
ROUNDING = 1e-6  # of shares that are written with a few digits

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class PoolModel(Section):
    """The pool's machines, all alike."""

    nodes: Annotated[int, Field(ge=1, le=100_000)]
    gpus_per_node: Annotated[int, Field(ge=1, le=72)] = 8
    host_memory: SizeBytes = Field(1 << 40, description="What parked jobs may use on each node. Default 1 TiB.")
    reserve: Annotated[int, Field(ge=0)] = 0

    def replicas_max(self, slots: int) -> int:
        """Replicas of so many GPUs each that fit in; a replica's are of one node."""
        return self.nodes * (self.gpus_per_node // slots)


_H100_8B = Engine(prefill_tok_s=1.0, decode_tok_s=1.0)  # what an engine has where nothing else is said of it


class EngineModel(Section):
    """A replica that is none of the known ones: another model, or other GPUs."""

    prefill_tok_s: Positive = Field(description="Tokens of prompts that it reads a second, batched as it will be.")
    decode_tok_s: Positive = Field(description="Tokens that it writes a second, likewise.")
    gpus: Annotated[int, Field(ge=1, le=72)] = Field(1, description="Of one node. Default 1.")
    weights: SizeBytes = Field(
        _H100_8B.park_bytes, description="What it loads, and keeps in host memory while it is parked. Default 16GiB."
    )
    full: Annotated[float, Field(gt=0, le=1)] = Field(
        _H100_8B.full, description=f"Share of its speed that it is meant to work at. Default {_H100_8B.full:g}."
    )
    tpot_s: Seconds = Field(
        _H100_8B.tpot_s, description=f"Between two tokens of an answer, at that share. Default {_H100_8B.tpot_s:g}."
    )
    step_s: Seconds = Field(
        _H100_8B.step_s,
        description=f"Its shortest step, which reads all weights; of requests one by one. Default {_H100_8B.step_s:g}.",
    )
    chunk_tokens: Positive = Field(
        _H100_8B.chunk_tokens, description=f"Of prompts in a step, at most. Default {_H100_8B.chunk_tokens:g}."
    )
    kv_tokens: Positive = Field(
        _H100_8B.kv_tokens,
        description=f"That its KV cache has room for; of requests one by one. Default {_H100_8B.kv_tokens:g}.",
    )

    def as_engine(self) -> Engine:
        """As the simulator has it."""
        return Engine(
            prefill_tok_s=self.prefill_tok_s,
            decode_tok_s=self.decode_tok_s,
            park_bytes=self.weights,
            slots=self.gpus,
            full=self.full,
            tpot_s=self.tpot_s,
            step_s=self.step_s,
            chunk_tokens=self.chunk_tokens,
            kv_tokens=self.kv_tokens,
        )


class EndpointModel(Section):
    """An endpoint; the first trace of the command line is given to the first one, and so on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    engine: str = Field("llama-8b-h100", description=f"One of {', '.join(ENGINES)}, or of the file's own engines.")
    prompt_tokens: Annotated[float, Field(ge=1)] = Field(1000.0, description="Of a mean request, where no trace says.")
    output_tokens: Annotated[float, Field(ge=1)] = Field(200.0, description="The same.")
    ttft_slo_s: Seconds = 2.0
    down_after_s: SecondsOrZero = Field(
        DOWN_AFTER_S,
        description=f"Of lower demand, before a replica goes. Default {DOWN_AFTER_S:g}. Longer, less is wasted, and "
        "jobs wait longer.",
    )
    warm_replicas: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Most replicas that stay parked in host memory. Default null: as many as there is room for."
    )


class MixModel(Section):
    """What jobs are like, of which traces say nothing: shares of them, drawn from the seed."""

    elastic: Share = Field(
        0.0, description="Jobs that can do with more GPUs than they ask for. Default 0; Lyra (EuroSys'23) has 0.2."
    )
    elastic_times: Annotated[float, Field(gt=1, le=64)] = Field(
        2.0, description="So many times as many at most; their work stays the same. Default 2."
    )
    semi_preemptible: Share = Field(
        0.0, description="Of the elastic jobs: they may lose what is extra, and no more. Default 0."
    )
    non_preemptible: Share = Field(0.0, description="Of the others: they never step aside. Default 0.")
    priorities: dict[Annotated[int, Field(ge=-100, le=100)], Share] = Field(
        {0: 1.0}, description="Shares by priority, together 1; larger goes first. Default: all have 0."
    )

    @model_validator(mode="after")
    def _are_shares(self) -> "MixModel":
        together = sum(self.priorities.values())
        if abs(together - 1.0) > ROUNDING:
            raise ValueError(f"priorities: the shares are {together:g} together, they must be 1")
        return self

    def as_mix(self) -> Mix:
        """As the simulator has it."""
        return Mix(
            elastic=self.elastic,
            elastic_times=self.elastic_times,
            semi_preemptible=self.semi_preemptible,
            non_preemptible=self.non_preemptible,
            priorities=dict(sorted(self.priorities.items())),
        )


class JobsModel(Section):
    """Which of a trace's jobs are taken, and what they are like."""

    gpus_max: Annotated[int, Field(ge=1)] = 16
    shortest_s: SecondsOrZero = 60.0
    longest_s: Seconds = 3 * 86_400.0
    checkpoint_every_s: Seconds = Field(
        1800.0,
        description="Of training, between two checkpoints: what a crash may cost. Each pauses the job for 0.7 s. "
        "Default 1800; where gangs are large, more often is better.",
    )
    mix: MixModel = MixModel()

    @model_validator(mode="after")
    def _leaves_some(self) -> "JobsModel":
        if self.shortest_s > self.longest_s:
            said = f"shortest_s, {self.shortest_s:g}, is more than longest_s, {self.longest_s:g}"
            raise ValueError(f"{said}: no job is left")
        return self


class RunModel(Section):
    """How the run goes."""

    tick_s: Annotated[float, Field(ge=0.1, le=600)] = Field(5.0, description="Between two decisions. Default 5.")
    warm_up_s: SecondsOrZero = Field(
        86_400.0,
        description="Not scored: the pool begins empty. Shorter traffic than two of it is played twice, with "
        "its jobs, and the second time counts. Default a day.",
    )
    requests: Literal["fluid", "singly"] = Field(
        "fluid",
        description="How requests are played: as a fluid, or one by one, with their tokens, batches, KV and prefix "
        "caches, which takes a second or two for each million of them. Default fluid.",
    )
    hours_max: Annotated[float, Field(ge=1 / 60)] | None = Field(
        None, description="Of traffic, before it is played twice. Default null: all of it."
    )
    noise: Literal["kept", "aggregated"] = Field(
        "kept",
        description="Of a rate that is multiplied by k. kept: as large a share of it as the trace has, as if the same "
        "people asked k times at once, which is harsher than real traffic; aggregated: smaller by the square root of "
        "k, as of k crowds that know nothing of each other. Default kept.",
    )


class FailuresModel(Section):
    """What breaks: the same for every policy of a seed."""

    gpu_hours_each: Annotated[float, Field(ge=GPU_HOURS_EACH_MIN)] | None = Field(
        10_000.0,
        description="GPU-hours for each GPU that fails, and takes its node with it. Default 10000, as assumed for "
        f"benchmarks of this kind; at least {GPU_HOURS_EACH_MIN:g}; null: none.",
    )
    storm: bool = Field(
        True, description="Once in scored time of a day or more, 1 % of the nodes (at least one) fail in 5 minutes."
    )
    repair_s: Seconds = Field(3600.0, description="Until a node is back. Default an hour: assumed.")


class StorageModel(Section):
    """The shared filesystem."""

    gbytes_per_s: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Of all transfers together, in 10^9 bytes. Default null: 6.25 for each node, which is 50 for 64 "
        "GPUs, as one client of such storage has read (InstantTensor's benchmark: 45 of 50 GB/s on 8 H200).",
    )


class SimulationFile(Section):
    """The whole file."""

    pool: PoolModel = Field(description="How many machines there are, and what each has.")
    engines: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")], EngineModel] = Field(
        {}, description=f"Replicas by name, beside {', '.join(ENGINES)}."
    )
    endpoints: Annotated[tuple[EndpointModel, ...], Field(min_length=1)] = Field(
        description="One for each trace of traffic, each with a name."
    )
    jobs: JobsModel = JobsModel()
    policy: PolicySection = PolicySection()
    run: RunModel = RunModel()
    failures: FailuresModel = FailuresModel()
    storage: StorageModel = StorageModel()

    @field_validator("endpoints")
    @classmethod
    def _known_engines(cls, endpoints: tuple[EndpointModel, ...], info: ValidationInfo) -> tuple[EndpointModel, ...]:
        known = [*ENGINES, *info.data.get("engines", {})]
        for endpoint in endpoints:
            if endpoint.engine not in known:
                raise ValueError(f"endpoint {endpoint.name}: no engine {endpoint.engine}: there are {', '.join(known)}")
        return endpoints

    def engine_of(self, endpoint: EndpointModel) -> Engine:
        """What one replica of it is; the file's own before a known one of that name."""
        own = self.engines.get(endpoint.engine)
        return ENGINES[endpoint.engine] if own is None else own.as_engine()

    @model_validator(mode="after")
    def _fits(self) -> "SimulationFile":
        names = [endpoint.name for endpoint in self.endpoints]
        if len(set(names)) < len(names):
            raise ValueError("two endpoints have one name")
        for one in self.endpoints:
            slots = self.engine_of(one).slots
            if slots > self.pool.gpus_per_node:
                raise ValueError(f"endpoint {one.name}: a replica takes {slots} GPUs of one node, nodes have fewer")
        gpus, needed = self.pool.nodes * self.pool.gpus_per_node, sum(self.engine_of(o).slots for o in self.endpoints)
        if needed > gpus:
            raise ValueError(f"a replica of each endpoint takes {needed} GPUs, the pool has {gpus}")
        for size in sorted({self.engine_of(endpoint).slots for endpoint in self.endpoints}):
            # Nodes have room for no more of one size, wherever the larger ones stand, each of which takes that of some.
            needed, room = sum(self.engine_of(o).slots // size for o in self.endpoints), self.pool.replicas_max(size)
            if needed > room:
                raise ValueError(
                    f"a replica of each endpoint takes the room of {needed} with {size} GPUs of one node, and "
                    f"{self.pool.nodes} nodes of {self.pool.gpus_per_node} have it for {room}"
                )
        if self.pool.reserve >= gpus:
            raise ValueError("the reserve is the whole pool: no job would ever run")
        return self
