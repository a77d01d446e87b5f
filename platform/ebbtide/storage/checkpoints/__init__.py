"""State of training jobs on the shared directory: sharded, asynchronous, fenced by epochs, for any number of workers.

- `run_directory`: where checkpoints lie, which one counts, what may go, whether there is room. It imports no torch, and
  neither do `state.about_json` and `manager.two_phase_save`, so that a controller can ask how far a job is safe;
- `state`: what is in a checkpoint, as JSON and plain safetensors, and how rows of a rank's file become tensors again;
- `manager`: one run's checkpoints, for a process that holds all of the state: saved in two phases, opened, verified;
- `dcp`: the same for ``torch.distributed.checkpoint``, each rank with its own shards, and export for stock
  PyTorch.

No file of ours holds a pickle. Knows torch; neither Ray nor vLLM.
"""
