"""Things that are run to be looked at and measured: the demo, and the benchmarks. Nothing imports from here."""
