"""Upper bounds of histogram buckets, in seconds, and why these: about three per decade around what is asked of each.

Few, because every bucket of every label value is a time series; and each usual goal is a bound, so that "how many
were within it" is exact.
"""

# SLOs of a first token stand between 0.1 s (completion in an editor) and 5 s (a long prompt); beyond, people leave.
TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

# 10 ms is a large GPU on a small model; 100 ms is ten tokens a second, about as fast as people read; 1 s is stuck.
TPOT_S = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)

# From a refusal to the default limit of a request, 600 s.
REQUEST_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

# A park takes a training step and less than 1 s, a warm start 15-60 s, a large model from a slow disk minutes.
STAGE_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)

# A decision at 1,000 slots has 10 ms (bar `decide_1000`); the default tick is 100 ms; 5 s is the ledger's deadline.
TICK_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

# An fsync is below 1 ms on a local NVMe, 1-20 ms on a parallel filesystem; 5 s counts as hung.
FSYNC_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
