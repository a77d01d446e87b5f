"""Models that are in the store: found, listed, resolved, exported, repaired, and what was derived from them."""
