"""State of training jobs on the shared directory: sharded, asynchronous, fenced by epochs, for any number of workers.

From the bottom up:

- *places, lineage, retention, room*: where checkpoints lie, which one counts, what may go, whether there is room.
  Neither these nor *survey*, *about* and *publishing* import torch, so that a controller can ask how far a job is safe;
- *boxes, tensor_index, plain_state, tree_leaves*: what is in a checkpoint, as JSON and plain safetensors;
- *rank_file, scatter*: tensors into a rank's file, and rows of it back into tensors;
- *checkpoints*: one run's checkpoints, for whoever holds all of the state in one process;
- *dcp_writer, dcp_reader, gang*: the same for ``torch.distributed.checkpoint``, each rank with its own shards;
- *host_copy*: a copy in host memory, of which a thread writes while training goes on;
- *export*: for stock PyTorch, and for a place far away.

No file of ours holds a pickle. Knows torch; neither Ray nor vLLM.
"""
