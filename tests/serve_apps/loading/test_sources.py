"""One load, several sources: only if all came from the store may anything be made of it."""

from ebbtide.storage.transport.transfer_report import Mode, TransferReport
from ebbtide_serve.loading.rank_load import CHECKPOINT
from ebbtide_serve.loading.sources import SourcesRead
from ebbtide_serve.loading.start_record import OWN


def report(nbytes: int) -> TransferReport:
    return TransferReport({Mode.DIRECT: nbytes}, 1.0)


def test_nothing_that_was_read_is_the_engines_own_way() -> None:
    assert SourcesRead().outcome() == (OWN, None)


def test_all_from_the_store_is_the_checkpoint_with_all_its_bytes() -> None:
    read = SourcesRead()
    read.from_store(report(3))
    read.from_store(report(4))
    used, transfer = read.outcome()
    assert used == CHECKPOINT
    assert transfer is not None
    assert transfer.bytes == 7


def test_one_source_that_went_its_own_way_makes_it_the_engines_own_whatever_comes_before_or_after() -> None:
    """As that of secondary weights: they are of another directory, and the flat form's key does not know it."""
    after, before = SourcesRead(), SourcesRead()
    after.from_store(report(3))
    after.by_own_loader()
    before.by_own_loader()
    before.from_store(report(3))
    assert [read.outcome()[0] for read in (after, before)] == [OWN, OWN]
