"""What is in a checkpoint: nested state, boxes of tensors, their index and files.

How these are written and read, not when.
"""
