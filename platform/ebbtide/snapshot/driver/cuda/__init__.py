"""The adapter of the CUDA driver's checkpoint calls; the only room that may import its bindings."""
