"""Models that a file names by their id on the Hugging Face hub: ``hf://org/name``, or ``org/name`` without a directory.

Such a model is served from the pool's store, where it has the same name: ``hf://org/name@rev`` is ``org/name:rev``
there, and without a revision ``org/name:latest``. A directory ``org/name`` beside the file goes first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ebbtide.config.loading.pool_file_loader import LoadedFile
from ebbtide.config.loading.yaml_document import as_mapping
from ebbtide.config.sections.scalars import BARE_HUB_ID, HubId, hub_id


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub that an endpoint serves.

    Attributes:
        endpoint: its place in the file's list.
        id: on the hub.
        directory: which a bare ``org/name`` would have meant, and which is not there; None for ``hf://``.
    """

    endpoint: int
    id: HubId
    directory: Path | None

    def command(self, file: Path) -> str:
        """What brings it into the store of the file's pool."""
        tag = f" --tag {self.id.tag}" if self.id.revision else ""
        return f"ebbtide models import {self.id.url} --name {self.id.name}{tag} --pool-file {file}"


def hub_models(loaded: LoadedFile) -> Iterator[HubModel]:
    """The endpoints' models that the file names so; looks whether a directory has the name of a bare one."""
    sections = as_mapping(loaded.document.data).get("endpoints")
    for index, section in enumerate(sections if isinstance(sections, list) else []):
        text = as_mapping(section).get("model")
        if not isinstance(text, str) or loaded.config.endpoints[index].engine_class is not None:
            continue
        if (found := hub_id(text)) is not None:
            yield HubModel(index, found, None)
        elif BARE_HUB_ID.fullmatch(text) and not (directory := loaded.config.endpoints[index].model).exists():
            yield HubModel(index, HubId(text), directory)


def with_hub_models(loaded: LoadedFile) -> LoadedFile:
    """The file with each bare id as the name that the model has in the store; ``hf://`` is that already."""
    endpoints = list(loaded.config.endpoints)
    for found in hub_models(loaded):
        stored = Path(found.id.stored)
        endpoints[found.endpoint] = endpoints[found.endpoint].model_copy(update={"model": stored})
    return replace(loaded, config=loaded.config.model_copy(update={"endpoints": tuple(endpoints)}))
