"""vLLM behind the engine port: engine, worker, sleep mode, load formats.

With vllm_versions the only importer of vLLM, and imported by name only (its __init__ imports nothing).
"""
