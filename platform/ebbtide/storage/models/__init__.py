"""The models floor: what an endpoint loads, imported once however many nodes ask.

A model is an object of the store (kind ``model``): its safetensors files laid out anew with the tensors' bytes
unchanged, configuration and tokenizer beside them, so that its directory is a checkpoint that any engine reads. This
floor knows sources (directories, URLs), checkpoints and names; how objects are stored, checked, collected and repaired
is the floor below.

::

    with resolve(store, "org/model:latest") as model:
        model.directory     # for engines: config.json, tokenizer, *.safetensors
        model.stored        # for loaders: files with hashes
"""

from ebbtide.storage.models.exporting import Exported, export
from ebbtide.storage.models.importing import import_model
from ebbtide.storage.models.listing import Holder, ModelRow, list_models
from ebbtide.storage.models.mending import Mended, mend
from ebbtide.storage.models.opening import open_source
from ebbtide.storage.models.progress import ImportProgress, Phase
from ebbtide.storage.models.resolving import StoredModel, resolve
from ebbtide.storage.models.sources import Source, SourceChanged, SourceFile
from ebbtide.storage.models.terms import How, Imported, ImportTerms
from ebbtide.storage.models.wanted import Wanted, default_name, find, split_ref

__all__ = [
    "Exported",
    "Holder",
    "How",
    "ImportProgress",
    "ImportTerms",
    "Imported",
    "Mended",
    "ModelRow",
    "Phase",
    "Source",
    "SourceChanged",
    "SourceFile",
    "StoredModel",
    "Wanted",
    "default_name",
    "export",
    "find",
    "import_model",
    "list_models",
    "mend",
    "open_source",
    "resolve",
    "split_ref",
]
