"""Weights from the store into an engine's parameters: two load formats for vLLM.

``ebbtide``: checkpoint order. The tensors of a stored model are read by the verified transport and handed to the
model's own ``load_weights`` one by one, so every model's name mapping, fusion and tensor-parallel narrowing works.
Each rank reads the whole model.

``ebbtide_flat``: one file per rank with its parameters as they are in memory after ``load_weights`` and before the
engine repacks them; read straight to where they belong, 1/TP of the bytes. It is made from a load in checkpoint order
(`flat.capture`) and published by the replica once it serves (`flat.publishing`).

What cannot be had in one form is loaded in the next, ``ebbtide_flat`` -> ``ebbtide`` -> vLLM's own, each time with one
logged reason. Bytes that are not those that were published are never used: a damaged flat form leads to the checkpoint,
a damaged checkpoint to an error, since vLLM's own loader would read the same bytes and not look.

Sleep of level 2 drops the weights; they come back in checkpoint order, from the store: ``wake_up(["weights"])``,
``collective_rpc("reload_weights")``, ``wake_up(["kv_cache"])``.

vLLM is not imported here: its side is ``ebbtide_serve.vllm``. Torch is imported by what touches tensors;
``flat.publishing`` does not. What both formats do is in this folder, the flat form in ``flat``, reading in ``reading``.
"""
