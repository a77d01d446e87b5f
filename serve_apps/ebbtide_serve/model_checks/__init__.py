"""What a model's config.json says against an endpoint, before a GPU is granted.

``config_files`` finds the file, ``config_rules`` has vLLM's rules, ``model_findings`` the words. Imports neither vLLM
nor torch.
"""
