"""Pickle is recognised and refused: opening one runs whatever program its author put in it."""

from pathlib import Path

from ebbtide.storage.errors import Refused
from ebbtide.storage.safetensors.file_header import MAX_HEADER_BYTES, PREFIX_BYTES

_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".npy", ".npz", ".joblib", ".dill")
# A zip archive (torch.save), and the pickle protocols 2 to 5, which begin with their number.
_MAGICS = (b"PK\x03\x04", b"PK\x05\x06", *(bytes((0x80, protocol)) for protocol in range(2, 6)))
_HEADER_BEGINS = (b"{", b" ", b"\t", b"\n", b"\r")  # JSON's object, and the white space that may stand before it
MAGIC_BYTES = 9  # how much of a file's beginning is looked at


def refuse_pickle(path: Path, first_bytes: bytes) -> None:
    """Refuse a file of weights or state that is, or looks like, a pickle.

    Args:
        path: the file; only its name is looked at.
        first_bytes: at least its first `MAGIC_BYTES` bytes, or all of it.

    Raises:
        Refused: says how to convert it.
    """
    if path.suffix.lower() in _SUFFIXES:  # guard: a pickle is refused by its name
        why = f"files named *{path.suffix.lower()} may hold pickled Python objects"
    # guard: a pickle is refused by its beginning
    elif first_bytes.startswith(_MAGICS) and not _begins_like_safetensors(first_bytes):
        why = "it begins like a pickle or a zip archive, whatever its name says"
    else:
        return
    raise Refused(
        f"{str(path)!a} is refused: {why}, and opening one can run any program. Convert it once, where you trust "
        'it, and import the result: python -c "import torch; from safetensors.torch import save_file; '
        "save_file({name: t.contiguous() for name, t in torch.load('IN', weights_only=True).items()}, "
        "'OUT.safetensors')\""
    )


def _begins_like_safetensors(first_bytes: bytes) -> bool:
    """A header of, say, 640 bytes has a length that begins like pickle 2; no pickle goes on like a header after it."""
    length = int.from_bytes(first_bytes[:PREFIX_BYTES], "little")
    return first_bytes[PREFIX_BYTES:MAGIC_BYTES] in _HEADER_BEGINS and length <= MAX_HEADER_BYTES
