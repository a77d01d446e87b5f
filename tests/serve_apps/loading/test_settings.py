"""What a loader is told."""

from pathlib import Path

import pytest

from ebbtide.storage.errors import Refused
from ebbtide.storage.names import ObjectId
from ebbtide_serve.loading.settings import LoadSettings, split_settings

MODEL = ObjectId("ab" * 32)


@pytest.mark.parametrize(("capture", "loaders"), [(True, 0), (False, 8)])
def test_settings_survive_the_way_through_the_engines_configuration(capture: bool, loaders: int) -> None:
    settings = LoadSettings(Path("/shared/store"), MODEL, capture, loaders)
    assert split_settings(settings.to_extra() | {"num_threads": 4}) == (settings, {"num_threads": 4})
    assert settings.model_dir == Path("/shared/store/objects") / MODEL


def test_without_a_store_everything_is_for_vllms_own_loader() -> None:
    assert split_settings({"num_threads": 4}) == (None, {"num_threads": 4})


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"store": "/s"}, "'object'"),
        ({"object": MODEL}, "'store'"),
        ({"store": "s", "object": MODEL}, "absolute"),
        ({"store": 3, "object": MODEL}, "3"),
        ({"store": "/s", "object": "../../etc"}, "object id"),
        ({"store": "/s", "object": MODEL, "capture": "yes"}, "'capture'"),
        ({"store": "/s", "object": MODEL, "loaders": -1}, "'loaders'"),
        ({"store": "/s", "object": MODEL, "loaders": True}, "'loaders'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(extra: dict[str, object], named: str) -> None:
    with pytest.raises(Refused, match=named):
        split_settings(extra)
