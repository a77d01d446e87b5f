"""Measurements that need a GPU and nothing but PyTorch: ``python -m benchmarks.gpu.storage``.

``weights`` makes a model's files and knows what must be in them, ``ceilings`` measures what storage and link can do,
``loaders`` are ours and everybody else's, ``storage`` runs them in turns.
"""
