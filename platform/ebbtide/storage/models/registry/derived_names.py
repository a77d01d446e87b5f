"""How what was made of models is named in the store: flat forms, and caches of compilers. Pure."""

from ebbtide.storage.names import ObjectId

FLAT = "flat/"  # flat/<model>/<digest of the rest of the key>, a tag for each rank
ARTEFACT = "artefact/"  # artefact/<fingerprint>


def flat_name(model: ObjectId, digest: str) -> str:
    """What a flat form is called."""
    return f"{FLAT}{model}/{digest}"


def model_of(name: str) -> ObjectId | None:
    """The model that a flat form was made of, by its name; None for any other name."""
    model, _, digest = name.removeprefix(FLAT).partition("/")
    return ObjectId(model) if name.startswith(FLAT) and digest else None
