"""Keys that begin with ``x-`` are the author's own, as in Compose: places for anchors and notes."""

from pydantic import BaseModel

from ebbtide.config.finding import Loc
from ebbtide.config.loading.validation_messages import model_at

PREFIX = "x-"


def without_extensions(data: object, root: type[BaseModel], loc: Loc = ()) -> object:
    """``data`` without them; where the file is free (engine arguments, a job's arguments) and for names they stay."""
    if isinstance(data, list):
        return [without_extensions(item, root, (*loc, index)) for index, item in enumerate(data)]
    if not isinstance(data, dict) or (section := model_at(loc, root)) is None:
        return data
    kept = {}
    for key, value in data.items():
        # Names of the user's lead to a section, whatever they are; a key that no section has leads to none.
        is_own = key.startswith(PREFIX) and model_at((*loc, key), root) is None and key not in section.model_fields
        if not is_own:
            kept[key] = without_extensions(value, root, (*loc, key))
    return kept
