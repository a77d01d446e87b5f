"""The privileged helper of a node: its own process, a few verbs on a unix socket, a journal of each step.

Only it talks to the CUDA driver and runs CRIU. It acts on registered process trees alone, one operation on each at a
time, and never does again what may have been done: after a kill it reads back what is.

``client`` is for all other processes; ``service`` knows the verbs, ``operations`` carries them out, ``journal`` has the
tables of states, ``operations.crash_recovery`` what becomes of what was left under way.
"""
