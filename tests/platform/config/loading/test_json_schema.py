"""The schema that editors use says what every key means and agrees with the loader."""

from typing import Any

from ebbtide.config.loading.json_schema import SCHEMA_ID, pool_file_schema
from ebbtide.config.loading.validation_messages import known_keys, model_at
from ebbtide.config.pool_file import PoolFile


def test_the_schema_names_itself_and_refuses_unknown_keys() -> None:
    schema = pool_file_schema()
    assert (schema["$id"], schema["title"]) == (SCHEMA_ID, "ebbtide pool file")
    assert schema["$schema"].endswith("2020-12/schema")
    models = [schema, *(part for part in schema["$defs"].values() if part.get("type") == "object")]
    assert all(part["additionalProperties"] is False for part in models)


def test_every_key_is_described_and_has_its_name_in_the_file() -> None:
    schema = pool_file_schema()
    for part in (schema, *schema["$defs"].values()):
        for key, field in part.get("properties", {}).items():
            assert field.get("description"), key
    assert "class" in schema["$defs"]["JobSection"]["properties"]
    assert "workload_class" not in schema["$defs"]["JobSection"]["properties"]


def test_sizes_may_be_numbers_or_text() -> None:
    field: dict[str, Any] = pool_file_schema()["$defs"]["PoolSection"]["properties"]["host_memory_per_node"]
    assert {kind["type"] for kind in field["anyOf"]} == {"integer", "string"}


def test_numbers_with_a_default_say_why_it_is_what_it_is() -> None:
    for name, part in pool_file_schema()["$defs"].items():
        for key, field in part.get("properties", {}).items():
            if isinstance(field.get("default"), int | float) and field["default"] is not False:
                assert "Default" in field["description"], (name, key)


def test_a_place_of_the_file_leads_to_its_model() -> None:
    assert model_at(()) is PoolFile
    assert known_keys(model_at(("jobs", 0, "workers")) or PoolFile) == ["min", "max"]
    assert model_at(("endpoints", 0, "engine")) is None
    assert model_at(("endpoints", 0, "engine", "x", "y")) is None
