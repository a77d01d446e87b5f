"""The JSON schema of a pool file. It is looser than the loader: what sections say about each other is not in it."""

from typing import Any

from ebbtide.config.loading.extensions import PREFIX
from ebbtide.config.pool_file import PoolFile

SCHEMA_ID = "urn:ebbtide:schema:pool-file"  # a name, not an address: nothing is fetched


def pool_file_schema() -> dict[str, Any]:
    """A draft 2020-12 schema with every key's description and default."""
    schema = PoolFile.model_json_schema(by_alias=True)
    for section in (schema, *schema["$defs"].values()):
        if section.get("additionalProperties") is False:
            section["patternProperties"] = {f"^{PREFIX}": {}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
        "title": "ebbtide pool file",
    }
