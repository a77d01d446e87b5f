"""Off the GPU and back: what hinders it, the device context, tensors in host memory, and takeover by a later gang."""
