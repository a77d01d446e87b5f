"""Which flat form belongs to a model as an engine has it, or why none may. Knows no engine: facts in, key out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from ebbtide.storage.names import ObjectId
from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.flat.code_digest import code_digest
from ebbtide_serve.loading.flat.flat_key import FlatKey, digest_of, without_places
from ebbtide_serve.loading.flat.layout import LAYOUT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine says of a model and of this rank.

    Attributes:
        config: the model's configuration.
        shaping: what else decides which part of the model a rank has, by name.
        splits: ways to split a model that are not understood here, by name, with their degrees.
        balances_experts: experts move between ranks while the engine runs.
        quantizes_online: weights are quantised while they are loaded.
    """

    engine: str
    dtype: str
    tensor_parallel: int
    rank: int
    device: str
    quantization: str = ""
    config: Mapping[str, object] = field(default_factory=dict)
    shaping: Mapping[str, object] = field(default_factory=dict)
    splits: Mapping[str, int] = field(default_factory=dict)
    balances_experts: bool = False
    quantizes_online: bool = False


def flat_key(model: nn.Module, wanted: ObjectId, facts: EngineFacts) -> FlatKey:
    """The key.

    Raises:
        FlatUnusable: there must not be a flat form; says why.
    """
    if facts.quantizes_online:
        raise FlatUnusable("this model is quantised while it is loaded: its parameters have no memory before")
    if odd := {name: degree for name, degree in facts.splits.items() if degree != 1}:
        told = ", ".join(f"{name} {degree}" for name, degree in sorted(odd.items()))
        raise FlatUnusable(f"the flat form knows tensor parallelism only, and this engine has {told}")
    if facts.balances_experts:
        raise FlatUnusable("experts move between ranks while this engine runs")
    return FlatKey(
        model=wanted,
        dtype=facts.dtype,
        tensor_parallel=facts.tensor_parallel,
        engine=facts.engine,
        quantization=facts.quantization,
        code=code_digest(model),
        config=digest_of([without_places(facts.config), dict(facts.shaping)]),
        device=facts.device,
        layout_version=LAYOUT_VERSION,
    )
