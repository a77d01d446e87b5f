"""What makes up the state of a training: tensors, whole or in shards, random numbers, and the DDP around the model."""
