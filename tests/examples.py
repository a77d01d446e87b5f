"""How many examples hypothesis makes for a property: few in `make test`, many in `make hunts`.

``HYPOTHESIS_PROFILE=long`` has the many; `python -m ci hunts` sets it for one module of properties after the other.
"""

import os

SCALES = {"quick": 0.4, "long": 3.0}
LEAST = 25  # in any profile, of a property that asks for at least that many
USUAL = 100  # hypothesis' own, for properties that say nothing
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")


def examples(number: int) -> int:
    """``number`` at the scale of the profile, but not less than `LEAST` where that many are asked for."""
    return max(min(number, LEAST), round(number * SCALES[PROFILE]))
