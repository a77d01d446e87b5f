"""What a flat form stands for, and under which names it is found. Pure.

All that could give a parameter other bytes is in the key: the model's content (its object id), the element type, the
tensor-parallel degree, the engine's version and the very code of the model's classes, quantisation, configuration, the
kind of device. A rank finds its file by the key, its rank and the digest of its own layout: two configurations that
differ in nothing but the layout do not take each other's place.

One object holds the files of all ranks, so that it is there for all of them or for none; each rank has a tag of its own
for it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ebbtide.storage.models.registry.derived_names import flat_name
from ebbtide.storage.names import ObjectId


@dataclass(frozen=True, slots=True)
class FlatKey:
    """What all ranks of one flat form have in common.

    Attributes:
        model: id of the object with the checkpoint.
        dtype: of the model, as the engine has it.
        tensor_parallel: number of ranks.
        engine: name and version.
        quantization: the engine's name for it; empty if there is none.
        code: digest of the sources of the model's classes.
        config: digest of the model's configuration and of what else shapes a rank's part.
        device: kind of device, with its generation: some layouts are chosen by it.
        layout_version: of what is stored and how.
    """

    model: ObjectId
    dtype: str
    tensor_parallel: int
    engine: str
    quantization: str
    code: str
    config: str
    device: str
    layout_version: int

    def as_manifest_key(self) -> dict[str, str]:
        """The key of the object."""
        return {name: str(value) for name, value in asdict(self).items()}

    @property
    def digest(self) -> str:
        """Short, for names."""
        return digest_of(self.as_manifest_key())[:16]

    @property
    def ref_name(self) -> str:
        """Under which its ranks' tags stand."""
        return flat_name(self.model, self.digest)

    def tag(self, rank: int, layout_digest: str) -> str:
        """The tag of one rank."""
        return f"tp{self.tensor_parallel}-rank{rank}-{layout_digest[:16]}"

    def file_name(self, rank: int) -> str:
        """The file of one rank."""
        return f"tp{self.tensor_parallel}/rank{rank}.safetensors"


def digest_of(value: object) -> str:
    """SHA-256 of anything that JSON can hold; equal for equal values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def without_places(config: Mapping[str, object]) -> dict[str, object]:
    """A model's configuration without what says where it lies and who wrote it, in nested parts too."""
    return {
        name: without_places(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name not in ("_name_or_path", "name_or_path", "transformers_version")
    }
