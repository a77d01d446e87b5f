"""torch.distributed.checkpoint: our reader and writer, all ranks of a gang together, and export for stock PyTorch."""
