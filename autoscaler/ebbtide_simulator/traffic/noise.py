"""The noise of traffic that is multiplied: as of one crowd that asks more, or as of many crowds. Pure.

Whoever multiplies a recorded rate by ``k`` multiplies its noise by ``k`` too: each burst is as large a share of the
rate as it was. Of ``k`` services that know nothing of each other bursts do not coincide, and the noise of their sum
grows by the square root of ``k`` only. Real growth is in between, so both are worth a look.
"""

from dataclasses import replace
from math import ceil, sqrt

import numpy as np
import numpy.typing as npt

from ebbtide_simulator.traffic.traces import Rates, Requests, Serving

Whole = npt.NDArray[np.int64]

APART_S = 60.0  # over which what was recorded once is spread: the curve of demand is made of minutes


def aggregate(trace: Serving, factor: float, seed: int) -> tuple[Serving, float]:
    """The trace with the noise of ``factor`` times as many people, and what its rate is still to be multiplied by.

    Of rates the noise from minute to minute is that much smaller; within a second it is of the drawn counts anyway. Of
    recorded requests each is repeated, at other moments of the minute. Other traces say nothing of their noise.
    """
    if isinstance(trace, Rates):
        return replace(trace, noise_per_s=trace.noise_per_s / sqrt(factor)), factor
    if isinstance(trace, Requests) and factor > 1.0:
        return _streams(trace, factor, seed), 1.0
    return trace, factor


def _streams(trace: Requests, factor: float, seed: int) -> Requests:
    """As many streams, each as recorded but begun at another moment, of the last one only some requests.

    What a stream's shift pushes past the end comes at the beginning: nothing is lost.
    """
    random = np.random.default_rng((seed, 1))
    long_s, count = float(np.floor(trace.at_s[-1])) + 1.0, len(trace.at_s)
    streams = ceil(factor)
    kept = np.ones(streams * count, dtype=bool)
    kept[(streams - 1) * count :] = random.random(count) < factor - (streams - 1)
    later_s = np.concatenate([[0.0], random.uniform(0.0, APART_S, streams - 1)])  # the first one is as it was
    at_s = (np.tile(trace.at_s, streams) + np.repeat(later_s, count))[kept] % long_s
    order = np.argsort(at_s, kind="stable")
    which = np.flatnonzero(kept)[order]
    stream, which = which // count, which % count
    found = replace(
        trace,
        at_s=at_s[order],
        prompt_tokens=trace.prompt_tokens[which],
        output_tokens=trace.output_tokens[which],
    )
    return found if trace.blocks is None or not len(trace.blocks) else _with_blocks(found, trace, which, stream)


def _with_blocks(found: Requests, trace: Requests, which: Whole, stream: Whole) -> Requests:
    """Prompts begin alike within a stream, as recorded, and never in two."""
    assert trace.blocks is not None, "else there is nothing to do"
    names, first = int(trace.blocks.max()) + 1, trace.blocks_from
    parts = [trace.blocks[first[n] : first[n + 1]] + names * of for n, of in zip(which, stream, strict=True)]
    ends = np.cumsum(np.diff(first)[which])
    return replace(found, blocks=np.concatenate(parts), blocks_from=np.concatenate([[0], ends]).astype(np.int64))
