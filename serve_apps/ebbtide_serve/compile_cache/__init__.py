"""What engines compute again at every start and need not: compiled graphs, kernels, inspected model classes.

Weights are a fraction of a cold start; compiling takes minutes. So the caches that an engine fills are published in
the store after its first healthy start, under a *fingerprint* of everything that they depend on, and restored before
the next engine with the same fingerprint starts, on whatever node. Each replica gets a directory of its own: two
processes never write into one cache.

What is restored is executed: compiled code is code. It is trusted as far as the shared directory is, and no further:
only what the store's own protocol published is taken (mode 0700, one user, hashes checked, key equal to what was asked
for), and nothing from anywhere else. Whoever can write to the store can run code in the replicas; but whoever can do
that can also change their models and the ledger. Hashes are against faults, not against such an attacker.

Everything here may fail without harm: a damaged, foreign or missing artefact costs the time of a cold start, and one
line that says why.
"""
