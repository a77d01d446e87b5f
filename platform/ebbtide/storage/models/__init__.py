"""What an endpoint loads, imported once however many nodes ask; this package's public names are those below.

A model is an object of the store (kind ``model``): its safetensors files laid out anew with the tensors' bytes
unchanged, configuration and tokenizer beside them, so that its directory is a checkpoint that any engine reads. Its
rooms know sources (directories, URLs), checkpoints and names; how objects are stored, checked, collected and repaired
is in `objects` and `maintenance`.

::

    with resolve(store, "org/model:latest") as model:
        model.directory     # for engines: config.json, tokenizer, *.safetensors
        model.stored        # for loaders: files with hashes
"""

from ebbtide.storage.models.importer.import_progress import ImportProgress, Phase
from ebbtide.storage.models.importer.import_terms import How, Imported, ImportTerms
from ebbtide.storage.models.importer.model_import import import_model
from ebbtide.storage.models.registry.model_export import Exported, export
from ebbtide.storage.models.registry.model_list import Holder, ModelRow, list_models
from ebbtide.storage.models.registry.model_names import ModelQuery, default_name, find, split_ref
from ebbtide.storage.models.registry.model_repair import RepairResult, repair_model
from ebbtide.storage.models.registry.model_resolution import StoredModel, resolve
from ebbtide.storage.models.sources.source import Source, SourceChanged, SourceFile
from ebbtide.storage.models.sources.source_factory import open_source

__all__ = [
    "Exported",
    "Holder",
    "How",
    "ImportProgress",
    "ImportTerms",
    "Imported",
    "ModelQuery",
    "ModelRow",
    "Phase",
    "RepairResult",
    "Source",
    "SourceChanged",
    "SourceFile",
    "StoredModel",
    "default_name",
    "export",
    "find",
    "import_model",
    "list_models",
    "open_source",
    "repair_model",
    "resolve",
    "split_ref",
]
