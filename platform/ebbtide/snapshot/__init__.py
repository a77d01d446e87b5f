"""Taking a process's device state off its device and putting it back, bit for bit.

Knows torch and the operating system; knows neither Ray nor vLLM, nor who wants the device. Today: eviction in place
to a host pool. CUDA checkpoints and process images come beside it, each with the next tier as its fallback.
"""
