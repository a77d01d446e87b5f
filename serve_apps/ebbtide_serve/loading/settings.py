"""What a loader is told, in vLLM's ``model_loader_extra_config``: the one thing that reaches every rank with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide.storage.errors import Refused
from ebbtide.storage.names import ObjectId, object_id
from ebbtide.storage.objects.store_paths import StorePaths

STORE, OBJECT, CAPTURE, LOADERS = "store", "object", "capture", "loaders"


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Where the weights are.

    Attributes:
        store: the store's directory.
        model: id of the stored model.
        capture: keep the parameters in host memory after a load in checkpoint order, for their flat form.
        loaders: how many ranks of the pool may load at once; 0: nobody counts.
    """

    store: Path
    model: ObjectId
    capture: bool = False
    loaders: int = 0

    @property
    def model_dir(self) -> Path:
        """The object's directory: what vLLM must be given as ``model``."""
        return StorePaths(self.store).object(self.model)

    def to_extra(self) -> dict[str, object]:
        """As ``model_loader_extra_config``."""
        return {STORE: str(self.store), OBJECT: self.model, CAPTURE: self.capture, LOADERS: self.loaders}


def split_settings(extra: Mapping[str, Any]) -> tuple[LoadSettings | None, dict[str, Any]]:
    """Ours, and what is left for vLLM's own loader; None if no store is named.

    Raises:
        Refused: a value makes no sense.
    """
    rest = {name: value for name, value in extra.items() if name not in (STORE, OBJECT, CAPTURE, LOADERS)}
    store, wanted = extra.get(STORE), extra.get(OBJECT)
    capture, loaders = extra.get(CAPTURE, False), extra.get(LOADERS, 0)
    if store is None and wanted is None:
        return None, rest
    if not isinstance(store, str) or not Path(store).is_absolute() or not isinstance(wanted, str):
        raise Refused(
            "model_loader_extra_config needs both 'store', an absolute path, and 'object', an object's id; "
            f"it has {store!r} and {wanted!r}"
        )
    if not isinstance(capture, bool):
        raise Refused(f"'capture' in model_loader_extra_config is true or false, not {capture!r}")
    if type(loaders) is not int or loaders < 0:
        raise Refused(f"'loaders' in model_loader_extra_config is a number from 0, not {loaders!r}")
    return LoadSettings(Path(store), object_id(wanted), capture, loaders), rest
