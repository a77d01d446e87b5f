"""What a machine can do for a pool, what it cannot, why that matters and what to do about it.

Knows the operating system, the storage's transports, the helper and GPU state; neither Ray nor vLLM.
"""
