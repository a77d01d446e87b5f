"""Freezing what a process holds on its GPUs, and giving it back: one port, three adapters, and the order for a gang.

May know a CUDA driver and the operating system; knows neither torch, Ray nor vLLM, nor who wants the GPUs. Importing
it needs no GPU, no driver and no CUDA package. Only one process of a node, the helper, makes the real calls.
"""
