"""Whole events out of any cutting of bytes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_serve.gateway.http.sse import EVENT_MAX_BYTES, EventSplitter, total_tokens


@pytest.mark.proves("no half event is passed on")
@given(
    events=st.lists(st.binary(max_size=20).map(lambda b: b"data: " + b.replace(b"\n", b"").replace(b"\r", b""))),
    end=st.sampled_from([b"\n\n", b"\r\n\r\n"]),
    cuts=st.lists(st.integers(0, 400)),
    rest=st.sampled_from([b"", b"data: half", b"data: half\n", b"data: half\r\n\r"]),
)
def test_any_cutting_gives_the_same_whole_events_and_keeps_a_half_one_back(
    events: list[bytes], end: bytes, cuts: list[int], rest: bytes
) -> None:
    whole = b"".join(event + end for event in events)
    stream = whole + rest
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    splitter = EventSplitter()
    out = [splitter.feed(stream[a:b]) for a, b in pairwise(edges)]
    assert b"".join(out) == whole and splitter.events == len(events)
    assert all(piece == b"" or piece.endswith(end) for piece in out)


def test_it_knows_how_the_stream_ended() -> None:
    splitter = EventSplitter()
    splitter.feed(b'data: {"text": "data: [DONE]"}\n\n')
    assert not splitter.finished and not splitter.ended_in_error
    splitter.feed(b"data: [DONE]\n\n")
    assert splitter.finished
    splitter.feed(b'data: {"error": {}}\n\n')
    assert splitter.ended_in_error and not splitter.finished


@pytest.mark.proves("an event that is kept back is bounded in size")
def test_an_endless_event_does_not_pile_up() -> None:
    assert len(EventSplitter().feed(b"x" * (EVENT_MAX_BYTES + 1))) == EVENT_MAX_BYTES + 1


def test_tokens_are_read_from_usage_and_not_from_generated_text() -> None:
    assert total_tokens(b'{"usage": {"prompt_tokens": 5, "total_tokens": 8}}') == 8
    assert total_tokens(rb'{"text": "\"total_tokens\": 99999"}') is None
