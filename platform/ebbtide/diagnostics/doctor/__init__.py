"""What one node can do for the storage, what it cannot, why that matters and what to do about it.

One module per subject; each has a *reading* (what was found, a frozen value), a function ``read_...`` that asks a
`Machine` for it, and a pure function ``judge_...`` that turns readings into findings. `examine` runs them all.

Knows the operating system and the storage's own transports; no Ray, no vLLM, and torch not either.
"""
