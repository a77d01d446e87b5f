"""A load's requests one by one: when each comes, how long its prompt and its answer are. Pure.

They are drawn minute by minute from the minute's own seed, so that they are the same whoever serves them, and in which
steps. Each second has as many as the load says, and as much work: a fluid of the same load is asked for the same. Where
the trace has each request, its tokens are the trace's.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebbtide_simulator.model.engine import Engine
from ebbtide_simulator.traffic.draws import LENGTH_SPREAD, MINUTE_S, Load
from ebbtide_simulator.traffic.traces import Array

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Singles:
    """Requests by arrival; all of shape (n,).

    Attributes:
        came_s: seconds from the load's start.
        prompt, output: tokens, one or more.
        begin, end: the request's prefix blocks among the trace's.
    """

    came_s: Array
    prompt: Array
    output: Array
    begin: Ints
    end: Ints

    def part(self, which: "slice | Ints") -> "Singles":
        """Some of them, in that order."""
        return Singles(self.came_s[which], self.prompt[which], self.output[which], self.begin[which], self.end[which])


@dataclass(frozen=True, slots=True)
class Drawn:
    """The requests of a load, by the minute."""

    load: Load
    engine: Engine
    seed: tuple[int, int]  # of the run, and the endpoint's number

    def minute(self, number: int) -> Singles:
        """Those of a minute from the load's start; ones beyond its end are none."""
        seconds = np.arange(number * MINUTE_S, min((number + 1) * MINUTE_S, len(self.load.work_s)))
        random = np.random.default_rng([*self.seed, number])
        found = self._recorded(seconds) if self.load.rows is not None else self._made_up(seconds, random)
        return found.part(np.argsort(found.came_s, kind="stable"))

    def _recorded(self, seconds: Ints) -> Singles:
        rows, of_second = self.load.rows, self.load.of_second
        assert rows is not None
        sources = seconds if of_second is None else of_second[seconds]
        taken = [np.arange(rows.first[at], rows.first[at + 1]) for at in sources]
        which = np.concatenate(taken) if taken else np.empty(0, np.int64)
        second = np.repeat(seconds, [len(one) for one in taken])
        return Singles(
            second + rows.part_s[which],
            np.maximum(rows.prompt[which], 1.0),
            np.maximum(rows.output[which], 1.0),
            rows.begin[which],
            rows.end[which],
        )

    def _made_up(self, seconds: Ints, random: np.random.Generator) -> Singles:
        counts = self.load.requests[seconds].astype(np.int64)
        second = np.repeat(seconds, counts)
        # Exponential, as a spread of 1 is; a second's are then stretched to the work that the load has in it.
        prompt, output = (
            random.gamma(LENGTH_SPREAD**-2, mean * LENGTH_SPREAD**2, len(second))
            for mean in (self.load.prompt_tokens, self.load.output_tokens)
        )
        each_s = prompt / self.engine.prefill_tok_s + output / self.engine.decode_tok_s
        at = second - (seconds[0] if len(seconds) else 0)
        sums_s = np.bincount(at, weights=each_s, minlength=len(seconds)).astype(np.float64)  # of nothing: whole numbers
        stretch = np.divide(self.load.work_s[seconds], sums_s, out=np.ones_like(sums_s), where=sums_s > 0)[at]
        nothing = np.zeros(len(second), np.int64)
        return Singles(
            second + random.random(len(second)),
            np.maximum(prompt * stretch, 1.0),
            np.maximum(np.round(output * stretch), 1.0),
            nothing,
            nothing,
        )
