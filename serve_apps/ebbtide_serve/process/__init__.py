"""What each process of a replica stands on: its lease, the death of its parent, the store, threads of low priority.

Knows neither torch nor vLLM nor Ray.
"""
