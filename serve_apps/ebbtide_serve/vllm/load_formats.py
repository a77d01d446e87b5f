"""The two load formats as vLLM's model loaders: what must know vLLM, and nothing else.

Both are vLLM's default loader with another source of tensors, so that what it does around them stays as it is: the
check that all parameters were loaded, secondary weights, the filter for experts of other ranks, reloading.

Imported when vLLM's registry is (``registration``). Leans on `DefaultModelLoader` (``_get_weights_iterator``,
``_prepare_weights``, ``Source``), which is no stable interface: ``tests/serve_apps/vllm/test_load_formats.py``.
"""

import dataclasses
import logging
import os
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import vllm
from torch import nn
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor import model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight
from vllm.platforms import current_platform

from ebbtide.storage.errors import Refused
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.system.modes import Place, took
from ebbtide_serve.loading.flat.capture_state import HELD
from ebbtide_serve.loading.flat.identity import EngineFacts
from ebbtide_serve.loading.rank_load import CHECKPOINT, FLAT, RankLoad, Ways, turn_to_load
from ebbtide_serve.loading.reading.checkpoint import Checkpoint
from ebbtide_serve.loading.reading.process_store import ProcessStore, process_store
from ebbtide_serve.loading.settings import split_settings
from ebbtide_serve.loading.sources import SourcesRead
from ebbtide_serve.loading.start_record import LOGGER, OWN, RECORD

_log = logging.getLogger(LOGGER)


def register() -> None:
    """Make both formats known; does nothing the second time."""
    known = model_loader._LOAD_FORMAT_TO_MODEL_LOADER
    for name, kind in ((CHECKPOINT, CheckpointLoader), (FLAT, FlatLoader)):
        if known.get(name) is not kind:
            model_loader.register_model_loader(name)(kind)


class CheckpointLoader(DefaultModelLoader):  # type: ignore[misc] # vLLM is not typed for us
    """Load format ``ebbtide``."""

    format = CHECKPOINT

    def __init__(self, load_config: Any) -> None:
        self._settings, rest = split_settings(load_config.model_loader_extra_config)
        super().__init__(dataclasses.replace(load_config, load_format="auto", model_loader_extra_config=rest))
        self._read = SourcesRead()
        self._device = torch.device("cpu")  # where the model's loader gets its tensors
        self._has_turn = False  # of all ranks that load

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        """Fill the parameters; called by vLLM between making the model and repacking.

        When the weights are done is noted by the worker, after repacking, as for every other loader.
        """
        RECORD.reached("weights")
        RECORD.asked, RECORD.rank = self.format, get_tensor_model_parallel_rank()
        why_own = self._why_own(model_config.model)
        if why_own or self._settings is None:
            self._tell(why_own)
            with self._turn():
                began_s = time.monotonic()
                self._load_in_turn(model, model_config)
                RECORD.add(OWN, None, time.monotonic() - began_s)
        else:
            facts = _facts(model, model_config)
            if not facts.quantizes_online:
                self._device = _target_device()
            ways = Ways(
                facts=facts,
                checkpoint=lambda: self._load_checkpoint(model, model_config),
                ranks_here=get_tensor_model_parallel_world_size(),
            )
            load = RankLoad(self._settings, self._store(), record=RECORD, held=HELD, say=self._say)
            load.load(model, self.format, ways)
            _log.info("%s: %s", self.format, RECORD.in_words())
            took(Place.LOAD, RECORD.in_words())

    def _load_checkpoint(self, model: nn.Module, model_config: Any) -> tuple[str, TransferReport | None]:
        self._read = SourcesRead()
        self._load_in_turn(model, model_config)
        return self._read.outcome()

    def _load_in_turn(self, model: nn.Module, model_config: Any) -> None:
        self._has_turn = True
        try:
            super().load_weights(model, model_config)
        finally:
            self._has_turn = False

    def get_all_weights(self, model_config: Any, model: nn.Module) -> Generator[tuple[str, torch.Tensor], None, None]:
        """The tensors of all sources; vLLM asks for it within a load, which has its turn, and when it reloads."""
        with nullcontext() if self._has_turn else self._turn():
            yield from super().get_all_weights(model_config, model)

    def _turn(self) -> AbstractContextManager[None]:
        if self._settings is None:
            return nullcontext()
        return turn_to_load(self._settings, get_tensor_model_parallel_rank(), record=RECORD, say=self._say)

    def _get_weights_iterator(self, source: Any) -> Generator[tuple[str, torch.Tensor], None, None]:
        """The tensors of one source; vLLM asks for it when it loads and when it reloads.

        On the device when it loads. In host memory when it reloads, or quantises while it loads: then it keeps tensors
        until it has all of a layer, and there is no room for them on the device.
        """
        why_own = self._why_own(source.model_or_path) or self._why_own_source(source)
        if why_own:
            self._tell(why_own)
            self._read.by_own_loader()
            yield from super()._get_weights_iterator(source)
            return
        # From 0.31 on a fourth is the name of the index file.
        _, files, use_safetensors, *_ = self._prepare_weights(
            source.model_or_path,
            source.subfolder,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        assert self._settings is not None, "else there is a reason"
        reach = self._store()
        self.counter_before_loading_weights = time.perf_counter()
        names = sorted(os.path.basename(file) for file in files)
        with reach.store.open(self._settings.model) as stored:
            checkpoint = Checkpoint(stored, self._device, reach)
            try:
                if not use_safetensors:
                    raise Refused(f"{source.model_or_path} has no safetensors files")
                checkpoint.check_types(names)
            except Refused as error:
                _check_all(stored, names)
                self._tell(str(error))
                self._read.by_own_loader()
                yield from super()._get_weights_iterator(source)
                return
            for name, tensor in checkpoint.tensors(names, self._is_wanted):
                yield source.prefix + name, tensor
            self._read.from_store(checkpoint.report)

    def _why_own(self, model: str) -> str:
        """Why vLLM's own loader must read ``model``; empty if it need not."""
        if self._settings is None:
            return "model_loader_extra_config names no store"
        if os.path.realpath(model) != os.path.realpath(self._settings.model_dir):
            return f"{model} is not the directory of object {self._settings.model}"
        return ""

    def _why_own_source(self, source: Any) -> str:
        if source.subfolder is not None:
            return f"the weights are in the subdirectory {source.subfolder}"
        if self.load_config.safetensors_load_strategy == "torchao":
            return "tensors of torchao are made by vLLM's own loader"
        return ""

    def _is_wanted(self, name: str) -> bool:
        return not should_skip_weight(name, self.local_expert_ids)

    def _store(self) -> ProcessStore:
        assert self._settings is not None, "checked by who calls"
        return process_store(self._settings.store)

    def _tell(self, why_own: str) -> None:
        reason = f"vLLM's own loader reads the weights: {why_own}"
        if reason not in RECORD.reasons:
            RECORD.reasons.append(reason)
            self._say(reason)

    def _say(self, reason: str) -> None:
        _log.warning("%s: %s", self.format, reason)


class FlatLoader(CheckpointLoader):
    """Load format ``ebbtide_flat``."""

    format = FLAT


def _check_all(stored: StoredObject, names: list[str]) -> None:
    """Check the content of files that another loader will read, which does not."""
    for name in names:
        stored.read_file(name)


def _target_device() -> torch.device:
    """Where the model is; with its index, since other threads have another current device."""
    config = get_current_vllm_config()
    device = torch.device(config.load_config.device or config.device_config.device)
    if device.type == "cuda":
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    return torch.device("cpu")  # what the transports know besides; vLLM moves the tensors on


def _facts(model: nn.Module, model_config: Any) -> EngineFacts:
    config = get_current_vllm_config()
    parallel = config.parallel_config
    return EngineFacts(
        engine=f"vllm {vllm.__version__}",
        dtype=str(model_config.dtype),
        tensor_parallel=get_tensor_model_parallel_world_size(),
        rank=get_tensor_model_parallel_rank(),
        device=f"{current_platform.device_type} {current_platform.get_device_capability()}",
        quantization=model_config.quantization or "",
        config=model_config.hf_config.to_dict(),
        shaping={
            "expert_parallel": parallel.enable_expert_parallel,
            "expert_placement": parallel.expert_placement_strategy,
            "decode_context_parallel": parallel.decode_context_parallel_size,
            "kv_cache_dtype": config.cache_config.cache_dtype,
            "implementation": model_config.model_impl,
            "convert": model_config.convert_type,
            "runner": model_config.runner_type,
        },
        splits={
            "pipeline_parallel_size": parallel.pipeline_parallel_size,
            "data_parallel_size": parallel.data_parallel_size,
            "prefill_context_parallel_size": parallel.prefill_context_parallel_size,
        },
        balances_experts=parallel.enable_eplb,
        quantizes_online=any(
            getattr(getattr(module, "quant_method", None), "uses_meta_device", False) for module in model.modules()
        ),
    )
