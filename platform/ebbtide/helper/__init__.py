"""The privileged helper of a node: its own process, a few verbs on a unix socket, a journal of each step.

Only it talks to the CUDA driver and runs CRIU. It acts on registered process trees alone, one operation on each at a
time, and never does again what may have been done: after a kill it reads back what is.

``client`` is for everybody else; ``service`` knows the verbs, ``dumping`` and ``reviving`` the two that matter most,
``steps`` the tables, ``settling`` what becomes of what was left under way.
"""
