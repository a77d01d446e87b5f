"""The pool's vocabulary and state: slots, leases, jobs, seats, their state machines and the events that move them.

Pure: no I/O, no clock, no randomness, no Ray. Read in this order: ``ids``, ``transitions``, ``events``, ``state``,
``handlers.apply``, ``rules.promises``.
"""
