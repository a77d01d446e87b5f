"""Pool files of which little matters."""

from pathlib import Path

from ebbtide.config.loading.pool_file_loader import load_text
from ebbtide.config.pool_file import PoolFile


def file(least: int, seed: int = 0) -> PoolFile:
    text = f"""
pool: {{name: p, slots: 3, shared_dir: /s}}
endpoints:
  - {{name: chat, model: m:1, replicas: {{min: {least}, max: 3}}, engine: {{seed: {seed}}}}}
"""
    return load_text(text, path=Path("/p.yaml")).config
