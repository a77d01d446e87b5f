"""What ``ebbtide probe`` finds out: which ways off its slots hold for a workload on one node, and why others do not.

Reads /proc, /sys, the driver's files and the shared directory, and touches neither the workload nor a GPU. The verdict
itself is made by ``ebbtide.snapshot.tiers``; here are the facts it rests on, each with where it was read and what would
mend it.
"""
