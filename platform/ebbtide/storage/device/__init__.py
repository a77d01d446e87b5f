"""Files into GPU memory: by GPUDirect Storage, or through host memory, and the choice between these.

Knows transports and objects.
"""
