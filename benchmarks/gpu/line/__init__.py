"""The whole line on one GPU, once: ``python -m benchmarks.gpu.line --budget-s 560``.

``__main__`` plays ``play`` in a process of its own, ends it and all that it started in time, and makes the result.
``phases`` is the script: what is done, in which order, and what each phase needs. ``setting`` has sizes and the pool's
file, ``watch`` looks at the GPU and at the pool meanwhile, ``journal`` is what the two processes share.
"""
