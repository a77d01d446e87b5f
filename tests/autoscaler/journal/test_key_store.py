"""Keys of the file and of the command: what may be done to which, and what gateways are told."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ebbtide.client.messages import KeyGrant
from ebbtide_autoscaler.control.key_changes import KeyChanges
from ebbtide_autoscaler.journal.key_store import KeyStore, create, key_record, recovered_key, revoke, rotate
from tests.examples import examples

ENDPOINTS = frozenset({"chat", "code"})


def grant(name: str = "team", sha256: str = "a" * 64, **fields: Any) -> KeyGrant:
    return KeyGrant(name=name, sha256=sha256, scopes=("models", "generate"), **fields)


def book_of(*made: KeyGrant) -> KeyStore:
    book = KeyStore()
    for one in made:
        book = book.with_made(create(book, one, ENDPOINTS, 100.0))
    return book


def digests(book: KeyStore, now_s: float) -> dict[str, float | None]:
    return {one.sha256[0]: one.expires_s for one in book.grants(now_s) if not one.revoked}


@pytest.mark.proves("an old secret never outlives its grace")
def test_a_rotated_key_has_two_good_secrets_until_the_grace_is_over_and_never_three() -> None:
    book = book_of(grant())
    book = book.with_made(rotate(book, "team", "b" * 64, 60.0, 200.0))
    assert digests(book, 259.9) == {"a": 260.0, "b": None}
    assert digests(book, 260.0) == {"b": None}
    again = book.with_made(rotate(book, "team", "c" * 64, 60.0, 210.0))
    assert digests(again, 211.0) == {"b": 270.0, "c": None}
    assert digests(book.with_made(rotate(book, "team", "c" * 64, 0.0, 210.0)), 210.0) == {"c": None}


@pytest.mark.proves("an old secret never outlives its key")
def test_the_old_secret_never_outlives_the_key() -> None:
    book = book_of(grant(expires_s=230.0))
    book = book.with_made(rotate(book, "team", "b" * 64, 3600.0, 200.0))
    assert digests(book, 201.0) == {"a": 230.0, "b": 230.0}


@pytest.mark.proves("a key's name is given once", "a revoked key gets no new secret")
def test_revoking_closes_both_secrets_for_good() -> None:
    book = book_of(grant())
    book = book.with_made(rotate(book, "team", "b" * 64, 3600.0, 200.0))
    book = book.with_made(revoke(book, "team"))
    assert digests(book, 201.0) == {}
    assert book.with_made(revoke(book, "team")) == book
    assert book.rows(201.0)[0]["state"] == "revoked"
    with pytest.raises(ValueError, match="was revoked; create another"):
        rotate(book, "team", "c" * 64, 0.0, 202.0)
    with pytest.raises(ValueError, match="its name stays taken"):
        create(book, grant(), ENDPOINTS, 202.0)


@pytest.mark.proves(
    "a file cannot take the name of a made key",
    "a key of the file is changed in the file",
    "a name of the file is the file's",
)
def test_a_key_of_the_file_is_not_the_commands_to_change() -> None:
    book = KeyStore().with_file((grant("ops"),))
    with pytest.raises(ValueError, match="stands in the pool's file: change it there"):
        revoke(book, "ops")
    with pytest.raises(ValueError, match="stands in the pool's file: change it there"):
        rotate(book, "ops", "b" * 64, 0.0, 1.0)
    with pytest.raises(ValueError, match="is in the pool's file"):
        create(book, grant("ops"), ENDPOINTS, 1.0)
    with pytest.raises(ValueError, match="was made by `ebbtide keys`"):
        book_of(grant()).with_file((grant("team"),))


@pytest.mark.proves("a key names endpoints that there are")
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (grant(name="Team A"), "no name for a key"),
        (grant(name=""), "no name for a key"),
        (grant(endpoints=("caht",)), "no endpoint 'caht'; there are: chat, code"),
        (grant(expires_s=99.0), "expired already"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_reason(wrong: KeyGrant, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        create(KeyStore(), wrong, ENDPOINTS, 100.0)


def test_nothing_that_people_are_shown_holds_a_digest() -> None:
    book = book_of(grant(sha256="d" * 64)).with_file((grant("ops", "e" * 64),))
    book = book.with_made(rotate(book, "team", "f" * 64, 60.0, 200.0))
    text = json.dumps(book.rows(201.0))
    assert not any(letter * 64 in text for letter in "def")
    assert [row["from"] for row in book.rows(201.0)] == ["file", "command"]


class Journal:
    """Keeps records; ``full`` refuses them."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.full = False

    async def write(self, record: Mapping[str, Any]) -> None:
        await asyncio.sleep(0)
        if self.full:
            raise OSError("no space")
        self.records.append(json.loads(json.dumps(record)))


def desk_of(journal: Journal) -> KeyChanges:
    desk = KeyChanges(journal.write)
    made = {key.grant.name: key for key in map(recovered_key, journal.records)}
    desk.recover(made, epoch=3 + len(journal.records))
    desk.obey((grant("ops", "e" * 64),), ENDPOINTS)
    return desk


@pytest.mark.proves("a new arbiter's version of the keys is higher")
@hypothesis_settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["create", "rotate", "revoke"]), st.sampled_from(["a", "b", "ops"])), max_size=12
    )
)
def test_an_arbiter_that_restarts_obeys_the_same_keys_under_a_higher_version(steps: list[tuple[str, str]]) -> None:
    async def play() -> None:
        journal = Journal()
        desk = desk_of(journal)
        for number, (what, name) in enumerate(steps):
            before = desk.orders(-1, None, None)
            try:
                if what == "create":
                    await desk.create(grant(name, f"{number:064x}"))
                elif what == "rotate":
                    await desk.rotate(name, f"{number:064x}", 1e6)
                else:
                    await desk.revoke(name)
            except ValueError:
                assert desk.orders(-1, None, None) == before
            after = desk.orders(-1, None, None)
            assert after.keys_version > before.keys_version or after.keys == before.keys
            assert desk.orders(after.keys_version, None, None).keys is None
        restarted = desk_of(journal).orders(-1, None, None)
        assert restarted.keys == desk.orders(-1, None, None).keys
        assert restarted.keys_version >= desk.orders(-1, None, None).keys_version

    asyncio.run(play())


@pytest.mark.proves("no gateway hears of a key that is not journaled")
async def test_no_gateway_hears_of_a_key_that_is_not_journaled() -> None:
    journal = Journal()
    desk = desk_of(journal)
    before = desk.orders(-1, None, None)
    journal.full = True
    with pytest.raises(OSError):
        await desk.create(grant())
    assert desk.orders(-1, None, None) == before


async def test_changes_at_the_same_time_lose_none() -> None:
    journal = Journal()
    desk = desk_of(journal)
    await asyncio.gather(*[desk.create(grant(f"k{number}", f"{number:064x}")) for number in range(20)])
    assert {one.name for one in desk.orders(-1, None, None).keys or ()} == {"ops", *(f"k{n}" for n in range(20))}
    assert len(journal.records) == 20


@pytest.mark.proves("changes of keys at the same time lose none")
async def test_of_two_that_make_the_same_key_at_the_same_time_one_is_refused() -> None:
    """Both were told that it is theirs otherwise, and only the last secret would open anything."""
    records: list[Mapping[str, Any]] = []

    async def slowly(record: Mapping[str, Any]) -> None:
        await asyncio.sleep(0.02)
        records.append(record)

    desk = KeyChanges(slowly)
    desk.obey((), frozenset({"chat"}))
    made = await asyncio.gather(*[desk.create(grant("team", f"{n:064x}")) for n in range(2)], return_exceptions=True)
    assert [type(one) for one in made] == [dict, ValueError] and len(records) == 1


@pytest.mark.proves("before a file is in force no keys are known")
async def test_before_any_file_is_in_force_no_keys_are_known() -> None:
    desk = KeyChanges(Journal().write)
    assert desk.orders(-1, None, None).keys is None and desk.orders(-1, None, None).keys_version == 0
    with pytest.raises(ValueError, match="no file is in force"):
        await desk.create(grant())


def test_a_record_says_the_whole_key() -> None:
    book = book_of(grant(endpoints=("chat",), tokens_per_minute=5))
    made = rotate(book, "team", "b" * 64, 60.0, 200.0)
    record = json.loads(json.dumps(key_record(made, 200.0)))
    assert record["type"] == "key" and recovered_key(record) == made
