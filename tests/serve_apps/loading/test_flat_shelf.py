"""Flat forms go with their model."""

from pathlib import Path

from ebbtide_serve.loading.flat_shelf import prune
from ebbtide_serve.loading.publishing import publish_flat
from tests.platform.storage.stores import collect_all
from tests.serve_apps.loading.small_model import publish_small, reach
from tests.serve_apps.loading.test_rank_load import Rank, call_to


def test_a_flat_form_goes_when_its_model_has_gone_and_not_before(tmp_path: Path) -> None:
    store = reach(tmp_path / "store")
    models = [publish_small(store.store, seed) for seed in (0, 1)]
    ranks = [Rank(store, models[1], told=None)]
    store.store.refs.write("small", "old", models[0])
    ranks[0].wanted = models[0]
    ranks[0].load()
    found = publish_flat(store.store, call_to(ranks))
    assert found.object is not None
    assert prune(store.store) == []
    collect_all(store.store)
    assert found.object in store.store.list_objects()

    store.store.refs.delete("small", "old")
    collect_all(store.store)
    gone = prune(store.store)
    assert [one.partition(":")[0] for one in gone] == [f"flat/{models[0]}/{gone[0].split('/')[2].partition(':')[0]}"]
    collect_all(store.store)
    assert store.store.list_objects() == [models[1]]
