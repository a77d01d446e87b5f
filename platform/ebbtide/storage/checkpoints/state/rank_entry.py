"""What one rank wrote into a checkpoint, as plain data that can be sent to the rank that commits.

As JSON, so that it can go through any pipe, file or collective without a pickle.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from ebbtide.storage.checkpoints.state.boxes import Ints
from ebbtide.storage.checkpoints.state.state_tree import Json
from ebbtide.storage.errors import Refused
from ebbtide.storage.objects.manifest import FileEntry


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor in a rank's file.

    Attributes:
        name: of the tensor in the state.
        dtype: in the names of safetensors.
        shape: of the whole tensor.
        offsets, sizes: of the box in it.
        at: of its first byte in the file.
    """

    name: str
    dtype: str
    shape: Ints
    offsets: Ints
    sizes: Ints
    at: int


@dataclass(frozen=True, slots=True)
class RankEntry:
    """What one rank wrote.

    Attributes:
        rank: which.
        file: its file; None if it had nothing to write.
        pieces: what is in the file.
        objects: parts of the state that are no tensors, packed, by name.
    """

    rank: int
    file: FileEntry | None = None
    pieces: tuple[Piece, ...] = ()
    objects: Mapping[str, Json] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """The name of its file; empty if it has none."""
        return "" if self.file is None else self.file.name

    def to_json(self) -> str:
        """As text."""
        pieces = [[piece.name, piece.dtype, piece.shape, piece.offsets, piece.sizes, piece.at] for piece in self.pieces]
        file = None if self.file is None else self.file.model_dump(mode="json")
        fields = {"rank": self.rank, "file": file, "pieces": pieces, "objects": dict(self.objects)}
        return json.dumps(fields, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "RankEntry":
        """The other way round.

        Raises:
            Refused: it is not what `to_json` makes.
        """
        try:
            fields = json.loads(text)
            file = None if fields["file"] is None else FileEntry.model_validate(fields["file"])
            pieces = tuple(
                Piece(str(name), str(dtype), tuple(shape), tuple(offsets), tuple(sizes), int(at))
                for name, dtype, shape, offsets, sizes, at in fields["pieces"]
            )
            return cls(int(fields["rank"]), file, pieces, dict(fields["objects"]))
        except (ValueError, KeyError, TypeError, ValidationError, RecursionError) as error:
            raise Refused(f"this is not what a rank says of its part of a checkpoint: {error}") from error
