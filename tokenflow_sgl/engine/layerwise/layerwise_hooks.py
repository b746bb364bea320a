"""SGLang's hooks through which its memory becomes ours; see `layerwise_pool`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.mem_cache.kv_cache_builder import uses_ssm_state
from sglang.srt.platforms import current_platform
from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.layerwise.admission_hook import admit
from tokenflow_sgl.engine.layerwise.layer_executor import LayerExecutor
from tokenflow_sgl.engine.layerwise.layerwise_attention import register_layerwise_attention
from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool, telling
from tokenflow_sgl.engine.layerwise.layerwise_refusals import check_device, check_layers
from tokenflow_sgl.engine.layerwise.on_cuda import prepare_cuda
from tokenflow_sgl.engine.layerwise_settings import LayerwiseSettings
from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.worker import Configurator

_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator:KVCacheConfigurator"
_ADMISSION = "sglang.srt.managers.schedule_policy:PrefillAdder.add_one_req"
_BEAMS = "sglang.srt.beam_search.coordinator:BeamCoordinator.validate_and_init"
_ROWS_FREED = "sglang.srt.mem_cache.memory_pool:ReqToTokenPool.free_rows"
_POOL_CLASS = "sglang.srt.platforms.interface:SRTPlatform.get_kv_pool_cls"


def register_layerwise(settings: LayerwiseSettings, *, admits: bool) -> None:
    """Declare the hooks and the attention, in the scheduler's process before it has a pool.

    Args:
        settings: Of the launch.
        admits: Prompts wait where they would cost more than they give; else a policy says who
            waits.

    Raises:
        UnsupportedError: It does not work on this device, or not with these options there.
    """
    device = str(current_platform.get_device())  # a torch.device on GPUs
    check_device(device, rocm=torch.version.hip is not None)
    if torch.device(device).type == "cuda":
        prepare_cuda()
    _hold_pool(settings)
    _hold_pages()
    if admits:
        hold(
            _ADMISSION,
            admit,
            HookType.AROUND,
            "prompts wait where they would cost more than they give",
            ("req",),
        )
    hold(
        _BEAMS,
        refuse_beams,
        HookType.AROUND,
        "answers requests for beam search with an error",
        ("req", "recv_req"),
    )
    register_layerwise_attention(settings)


def _hold_pool(settings: LayerwiseSettings) -> None:
    """Declare the hooks by which SGLang makes our pool, with pages for device and host."""
    pool = type("LayerwisePool", (LayerwisePool,), {"settings": settings})

    def bytes_of_all(found: int, *_args: Any, **_kwargs: Any) -> int:
        """SGLang hands out pages for all tokens, of which the device has room for a share."""
        return int(found * settings.ratio)

    def pool_class(original: Callable[..., type | None], platform: Any, *, kind: str) -> Any:
        return pool if kind == "mha" else original(platform, kind=kind)

    hold(
        f"{_CONFIGURATOR}._profile_available_bytes",
        bytes_of_all,
        HookType.AFTER,
        "SGLang hands out pages for the tokens of device and host",
    )
    hold(
        _POOL_CLASS,
        pool_class,
        HookType.AROUND,
        "puts the pool in place that has all layers in one arena",
        ("kind",),
    )


def _hold_pages() -> None:
    """Declare the hooks by which executors know which pages are free, and which streams end."""
    executors: list[LayerExecutor] = []  # of the process: one, when SGLang has made its pool

    def built(result: Any, configurator: Configurator, *_args: Any, **_kwargs: Any) -> Any:
        allocator = _built(result, configurator)
        if isinstance(allocator.get_kvcache(), LayerwisePool):
            executors.append(allocator.get_kvcache().executor)
        return allocator

    def rows_freed(found: None, _rows: Any, indices: list[int]) -> None:
        for executor in executors:
            executor.ended(indices)

    hold(
        f"{_CONFIGURATOR}._build_token_to_kv_pool_allocator",
        built,
        HookType.AFTER,
        "puts an allocator in place that tells which pages are free",
    )
    hold(
        _ROWS_FREED,
        rows_freed,
        HookType.AFTER,
        "a stream ends: what is not freed of it is the prefix tree's",
        ("indices",),
    )


def refuse_beams(_original: Callable[..., Any], *_args: Any, **_kwargs: Any) -> str:
    """Around SGLang's check of a request for beam search: why it is answered with an error."""
    return (
        "Beam search is not supported with --tokenflow-layerwise: its rows would share pages "
        "whose layers lie differently."
    )


def _built(result: Any, configurator: Configurator) -> Any:
    config = configurator.model_config
    check_layers(
        is_generation=bool(config.is_generation),
        is_hybrid_swa=bool(config.is_hybrid_swa),
        is_hybrid_ssm=bool(uses_ssm_state(config)),
        is_mla=bool(configurator.use_mla_backend),
        is_encoder_decoder=bool(config.is_encoder_decoder),
    )
    return telling(result)
