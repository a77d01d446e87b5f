"""Replicas that batch continuously, request by request: the compiled loop of the request-level simulation.

A step of an engine carries one token of each answer that it writes, and up to ``chunk`` tokens of the prompts that it
reads, first come, first served. It lasts as long as those take at the engine's speeds, and no less than reading the
weights does. Between two events (a request comes, a prompt is read, an answer ends) all answers of a replica grow at
one rate, so an answer ends when the replica's count of tokens (``virtual``) has grown by its length: no step is ever
played. That is processor sharing by virtual time, exact but for the last step of a prompt, which may be a short one.

Arrays, because the loop is compiled: a million requests are some four million events. `requests` owns them.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CLOSED, READY, LEAVING = 0, 1, 2
NOBODY = -1
PER_DECADE = 40  # bins of a histogram of times: neighbours differ by 6 %
SHORTEST_S = 1e-4
BINS = 8 * PER_DECADE  # up to 10,000 s
WAYS = 4  # places in which a block may be kept

# Where a scalar is in ``counts``.
OPEN_HEAD, OPEN_TAIL, HELD, FREE, DONE, RECENT = range(6)
# Where a scalar is in ``total``.
WORK_S, STAY_S, HIT_TOKENS, PROMPT_TOKENS = range(4)


class Speeds(NamedTuple):
    """Of one engine, and what is promised.

    Attributes:
        prefill_tok_s, decode_tok_s: at full batches.
        step_s: the shortest step.
        chunk: prompt tokens of a step, at most.
        kv_tokens: of prompts and answers at once.
        at_once: requests at a replica, at most: beyond it the gateway holds.
        held_s: for which it does, at most.
        ttft_s, tpot_s: to the first token, and between two of an answer on average; beyond it a request is late.
        window_s, before_s: of `State.late` and `State.asked`, and how many seconds the first of these lacks.
        block_tokens: of a prefix block; 0: no prefix is known.
    """

    prefill_tok_s: float
    decode_tok_s: float
    step_s: float
    chunk: float
    kv_tokens: float
    at_once: int
    held_s: float
    ttft_s: float
    tpot_s: float
    window_s: int
    before_s: int
    block_tokens: int


REPLICA = np.dtype(
    [
        ("state", np.int64),  # CLOSED, READY or LEAVING
        ("at_s", np.float64),  # up to when it has been played
        ("next_s", np.float64),  # of its next event; infinity: none
        ("virtual", np.float64),  # tokens that each of its answers has grown by, since it began
        ("writing", np.int64),  # answers
        ("busy", np.int64),  # requests, those too that wait for their prompt's turn
        ("kv", np.float64),  # tokens kept
        ("first", np.int64),  # whose prompt is read; NOBODY
        ("last", np.int64),
        ("unread", np.float64),  # tokens of that prompt
        ("behind", np.float64),  # tokens of the prompts after it
        ("touched", np.int64),  # prefix blocks so far
        ("turn", np.int64),  # in which it came
    ]
)
REQUEST = np.dtype(
    [
        ("came_s", np.float64),
        ("given_s", np.float64),  # to a replica
        ("token_s", np.float64),  # the first; infinity: not yet
        ("prompt", np.float64),  # tokens
        ("output", np.float64),
        ("charged", np.float64),  # prompt tokens that have to be read
        ("begin", np.int64),  # its blocks among the trace's
        ("end", np.int64),
        ("after", np.int64),  # the next one in whatever line it stands
    ]
)


class State(NamedTuple):
    """All replicas of one endpoint, and the requests at them or held.

    Attributes:
        replicas: of type `REPLICA`.
        requests: of type `REQUEST`; a place is used again.
        heap_end: where the count of tokens ends an answer, as a heap; of shape (replicas, at once).
        heap_who: and whose answer it is.
        kept_id: prefix blocks that are in a replica's cache; of shape (replicas, places).
        kept_at: and when, in blocks touched.
        spare: places of requests that are free, the first ``counts[FREE]``.
        counts, total: scalars.
        late, asked: requests by window of arrival.
        waited_s: request-seconds to the first token, by second of arrival.
        ttft_bins, tpot_bins: histograms of times.
        recent_s: the last times from a replica's to the first token.
    """

    replicas: Any  # its elements have the fields as attributes, which numpy's types cannot say
    requests: Any
    heap_end: Floats
    heap_who: Ints
    kept_id: Ints
    kept_at: Ints
    spare: Ints
    counts: Ints
    total: Floats
    late: Floats
    asked: Floats
    waited_s: Floats
    ttft_bins: Floats
    tpot_bins: Floats
    recent_s: Floats


def seconds_of_bin(number: "Ints") -> Floats:
    """The middle of a bin, on a scale of logarithms."""
    found: Floats = SHORTEST_S * 10.0 ** ((number + 0.5) / PER_DECADE)
    return found


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _bin(seconds: float) -> int:
    if seconds <= SHORTEST_S:
        return 0
    return min(BINS - 1, int(np.log10(seconds / SHORTEST_S) * PER_DECADE))


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _reads(s: State, r: int, speeds: Speeds) -> bool:
    """Whether a prompt is read now: one whose tokens have no room waits for an answer to end."""
    replica = s.replicas[r]
    who = replica.first
    if who == NOBODY:
        return False
    request = s.requests[who]
    return bool(replica.writing == 0 or replica.kv + request.prompt + request.output <= speeds.kv_tokens)


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _rates(s: State, r: int, speeds: Speeds) -> tuple[float, float]:
    """Tokens a second: of each answer, and of the prompt.

    The length of a step is of whole prompts: one that is half read, and is looked at again, is read no slower for it.
    """
    replica = s.replicas[r]
    here = replica.writing / speeds.decode_tok_s
    if _reads(s, r, speeds):
        chunk = min(max(speeds.chunk - replica.writing, 1.0), s.requests[replica.first].charged + replica.behind)
        step_s = max(speeds.step_s, here + chunk / speeds.prefill_tok_s)
        return 1.0 / step_s, chunk / step_s
    if replica.writing:
        return 1.0 / max(speeds.step_s, here), 0.0
    return 0.0, 0.0


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _play_to(s: State, r: int, now_s: float, speeds: Speeds) -> None:
    """Nothing happens at this replica until then but that tokens come."""
    replica = s.replicas[r]
    answers, prompt = _rates(s, r, speeds)
    replica.virtual += answers * (now_s - replica.at_s)
    replica.unread -= prompt * (now_s - replica.at_s)
    replica.at_s = now_s


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _look_ahead(s: State, r: int, speeds: Speeds) -> None:
    replica = s.replicas[r]
    answers, prompt = _rates(s, r, speeds)
    found = np.inf
    if prompt > 0.0:
        found = replica.at_s + max(replica.unread, 0.0) / prompt
    if replica.writing:
        found = min(found, replica.at_s + max(s.heap_end[r, 0] - replica.virtual, 0.0) / answers)
    replica.next_s = found


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _push(s: State, r: int, end: float, who: int) -> None:
    replica = s.replicas[r]
    at = replica.writing
    replica.writing += 1
    while at > 0:
        up = (at - 1) // 2
        if s.heap_end[r, up] <= end:
            break
        s.heap_end[r, at], s.heap_who[r, at] = s.heap_end[r, up], s.heap_who[r, up]
        at = up
    s.heap_end[r, at], s.heap_who[r, at] = end, who


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _pop(s: State, r: int) -> int:
    replica = s.replicas[r]
    who = s.heap_who[r, 0]
    replica.writing -= 1
    count = replica.writing
    end, moved, at = s.heap_end[r, count], s.heap_who[r, count], 0
    while 2 * at + 1 < count:
        down = 2 * at + 1
        if down + 1 < count and s.heap_end[r, down + 1] < s.heap_end[r, down]:
            down += 1
        if s.heap_end[r, down] >= end:
            break
        s.heap_end[r, at], s.heap_who[r, at] = s.heap_end[r, down], s.heap_who[r, down]
        at = down
    s.heap_end[r, at], s.heap_who[r, at] = end, moved
    return int(who)


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _hit_tokens(s: State, r: int, who: int, blocks: Ints, speeds: Speeds) -> float:
    """Of its prompt, what the replica's cache still has from the start on; all of its blocks are there afterwards.

    The oldest are gone: only so many were touched since as there is room for beside the requests at work.
    """
    replica = s.replicas[r]
    request = s.requests[who]
    if not speeds.block_tokens:
        return 0.0
    room = int((speeds.kv_tokens - replica.kv) / speeds.block_tokens)
    size, hit, whole = s.kept_id.shape[1], 0, True
    for number in range(request.begin, request.end):
        block = blocks[number]
        found = oldest = (block * 2654435761) % size  # Knuth's multiplicative hash
        known = False
        for way in range(WAYS):
            place = (found + way) % size
            if s.kept_id[r, place] == block:
                known = replica.touched - s.kept_at[r, place] < room
                oldest = place
                break
            if s.kept_at[r, place] < s.kept_at[r, oldest]:
                oldest = place
        whole = whole and known
        hit += whole
        replica.touched += 1
        s.kept_id[r, oldest], s.kept_at[r, oldest] = block, replica.touched
    return float(min(float(hit * speeds.block_tokens), request.prompt - 1.0))


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _give(s: State, r: int, who: int, now_s: float, blocks: Ints, speeds: Speeds) -> None:
    """A request comes to a replica, which has been played up to now."""
    replica = s.replicas[r]
    request = s.requests[who]
    request.given_s = now_s
    hit = _hit_tokens(s, r, who, blocks, speeds)
    request.charged = max(request.prompt - hit, 1.0)
    s.total[HIT_TOKENS] += max(hit, 0.0)
    s.total[PROMPT_TOKENS] += request.prompt
    request.after = NOBODY
    replica.busy += 1
    if replica.first == NOBODY:
        replica.first, replica.unread = who, request.charged
    else:
        s.requests[replica.last].after = who
        replica.behind += request.charged
    replica.last = who


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _judge(s: State, who: int, late: bool, speeds: Speeds) -> None:
    """It is over with this request: its place is free."""
    request = s.requests[who]
    if late:
        s.late[(int(request.came_s) + speeds.before_s) // speeds.window_s] += 1.0
    s.spare[s.counts[FREE]] = who
    s.counts[FREE] += 1


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _refuse(s: State, who: int, speeds: Speeds) -> None:
    """The gateway has held it for too long."""
    s.waited_s[int(s.requests[who].came_s)] += speeds.held_s
    _judge(s, who, True, speeds)


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _answered(s: State, r: int, who: int, now_s: float, speeds: Speeds) -> None:
    replica = s.replicas[r]
    request = s.requests[who]
    ttft_s = request.token_s - request.came_s
    late = ttft_s > speeds.ttft_s
    if request.output > 1.0:
        tpot_s = (now_s - request.token_s) / (request.output - 1.0)
        late = late or tpot_s > speeds.tpot_s
        s.tpot_bins[_bin(tpot_s)] += 1.0
    s.total[WORK_S] += request.charged / speeds.prefill_tok_s + request.output / speeds.decode_tok_s
    s.total[STAY_S] += now_s - request.given_s
    s.counts[DONE] += 1
    replica.kv -= request.prompt + request.output
    replica.busy -= 1
    _judge(s, who, late, speeds)


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _happen(s: State, r: int, blocks: Ints, speeds: Speeds) -> None:
    """The replica's next event: a prompt is read, or an answer ends."""
    replica = s.replicas[r]
    now_s = replica.next_s
    _, prompt = _rates(s, r, speeds)
    read_s = replica.at_s + max(replica.unread, 0.0) / prompt if prompt > 0.0 else np.inf
    _play_to(s, r, now_s, speeds)
    if read_s <= now_s:
        who = replica.first
        request = s.requests[who]
        replica.first = request.after
        replica.unread = 0.0
        if replica.first != NOBODY:
            replica.unread = s.requests[replica.first].charged
            replica.behind -= replica.unread
        replica.kv += request.prompt + request.output
        request.token_s = now_s
        s.ttft_bins[_bin(now_s - request.came_s)] += 1.0
        s.waited_s[int(request.came_s)] += now_s - request.came_s
        s.recent_s[s.counts[RECENT] % len(s.recent_s)] = now_s - request.given_s
        s.counts[RECENT] += 1
        if request.output <= 1.0:
            _answered(s, r, who, now_s, speeds)
        else:
            _push(s, r, replica.virtual + request.output - 1.0, who)
    else:
        _answered(s, r, _pop(s, r), now_s, speeds)
    if replica.busy == 0:
        replica.virtual = 0.0  # a count that only grows would lose its digits
        if replica.state == LEAVING:
            replica.state = CLOSED
    if replica.state == READY:
        fill(s, r, now_s, blocks, speeds)
    _look_ahead(s, r, speeds)


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def fill(s: State, r: int, now_s: float, blocks: Ints, speeds: Speeds) -> None:
    """A replica that is played up to now takes of those that are held what it may."""
    replica = s.replicas[r]
    while s.counts[HELD] and replica.busy < speeds.at_once:
        who = _first_held(s)
        if now_s - s.requests[who].came_s > speeds.held_s:
            _refuse(s, who, speeds)
        else:
            _give(s, r, who, now_s, blocks, speeds)


@numba.njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _first_held(s: State) -> int:
    who = s.counts[OPEN_HEAD]
    s.counts[OPEN_HEAD] = s.requests[who].after
    s.counts[HELD] -= 1
    return int(who)


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def give_up(s: State, now_s: float, speeds: Speeds) -> None:
    """The gateway refuses whoever it has held for too long."""
    while s.counts[HELD] and now_s - s.requests[s.counts[OPEN_HEAD]].came_s > speeds.held_s:
        _refuse(s, _first_held(s), speeds)


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _come(s: State, who: int, now_s: float, blocks: Ints, speeds: Speeds) -> None:
    """To the replica with the fewest requests; held if all have as many as they may."""
    request = s.requests[who]
    best, least = NOBODY, speeds.at_once
    if not s.counts[HELD]:
        for r in range(len(s.replicas)):
            if s.replicas[r].state == READY and s.replicas[r].busy < least:
                best, least = r, s.replicas[r].busy
    if best != NOBODY:
        _play_to(s, best, now_s, speeds)
        _give(s, best, who, now_s, blocks, speeds)
        _look_ahead(s, best, speeds)
        return
    request.after = NOBODY
    if s.counts[HELD]:
        s.requests[s.counts[OPEN_TAIL]].after = who
    else:
        s.counts[OPEN_HEAD] = who
    s.counts[OPEN_TAIL] = who
    s.counts[HELD] += 1


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def play(
    s: State,
    until_s: float,
    came_s: Floats,
    prompt: Floats,
    output: Floats,
    begin: Ints,
    end: Ints,
    blocks: Ints,
    speeds: Speeds,
) -> None:
    """All that happens before ``until_s``, with these requests by arrival. There must be a spare place for each."""
    number, many = 0, len(came_s)
    while True:
        at_s = came_s[number] if number < many else np.inf
        r, next_s = 0, np.inf
        for other in range(len(s.replicas)):
            if s.replicas[other].next_s < next_s:
                r, next_s = other, s.replicas[other].next_s
        if min(at_s, next_s) >= until_s:
            break
        if next_s <= at_s:
            _happen(s, r, blocks, speeds)
            continue
        s.counts[FREE] -= 1
        who = s.spare[s.counts[FREE]]
        request = s.requests[who]
        request.came_s, request.token_s = at_s, np.inf
        request.prompt, request.output = prompt[number], output[number]
        request.begin, request.end = begin[number], end[number]
        s.asked[(int(at_s) + speeds.before_s) // speeds.window_s] += 1.0
        _come(s, who, at_s, blocks, speeds)
        number += 1
    give_up(s, until_s, speeds)


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def open_one(s: State, r: int, now_s: float, blocks: Ints, speeds: Speeds) -> None:
    """A replica answers from now on, with nothing in its caches."""
    replica = s.replicas[r]
    replica.state, replica.at_s, replica.virtual = READY, now_s, 0.0
    replica.first, replica.kv, replica.unread, replica.behind = NOBODY, 0.0, 0.0, 0.0
    s.kept_id[r, :], s.kept_at[r, :], replica.touched = NOBODY, 0, 0
    fill(s, r, now_s, blocks, speeds)
    _look_ahead(s, r, speeds)


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def kill_one(s: State, r: int, speeds: Speeds) -> None:
    """A replica dies, and all requests at it fail."""
    replica = s.replicas[r]
    for at in range(replica.writing):
        _judge(s, s.heap_who[r, at], True, speeds)
    while replica.first != NOBODY:
        who = replica.first
        replica.first = s.requests[who].after
        _judge(s, who, True, speeds)
    replica.writing, replica.busy, replica.state, replica.next_s = 0, 0, CLOSED, np.inf
