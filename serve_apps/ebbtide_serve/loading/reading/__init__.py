"""Stored files into tensors: the process's store, windows, a checkpoint in the order of its files."""
