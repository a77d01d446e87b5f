"""Continuous integration within a budget: what runs, in which order, how long, and what is said of it at the end.

``.ci/run`` sets the machine up and starts this package. Read in this order: `parts` (check, tests, clusters), `hunts`
(which of them come first, and whether there is time), `command` (one process with all its descendants, cut off in
time), `progress` and `told` (what a pytest has tested so far), `part` (a part with its second tries), `summary`.
"""
