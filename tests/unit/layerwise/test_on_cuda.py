"""What a start on a GPU asks for, with SGLang's own record of its options."""

from __future__ import annotations

import logging
import warnings
from types import SimpleNamespace

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt.arg_groups.cuda_graph_hook import parse_cuda_graph_config
    from sglang.srt.arg_groups.model_override_base import resolved_view
    from sglang.srt.platforms.cuda import CudaSRTPlatform
    from sglang.srt.platforms.interface import SRTPlatform
    from sglang.srt.plugins.hook_registry import HookType
    from sglang.srt.server_args import prepare_server_args

    from tokenflow_sgl.engine.layerwise import layerwise_hooks, on_cuda

from tokenflow_sgl.engine.layerwise_settings import LayerwiseSettings
from tokenflow_sgl.engine.refusal import UnsupportedError

FUSED = "sglang.srt.models.utils:enable_fused_set_kv_buffer"


@pytest.fixture
def prepared(monkeypatch):
    """Prepare with these graphs; returns the hooks."""
    hooked: list[tuple] = []
    monkeypatch.setattr(on_cuda, "hold", lambda *given: hooked.append(given))
    monkeypatch.setattr(on_cuda, "has_batched_copies", lambda: True)

    def prepare(decode: str, prefill: str) -> list[tuple]:
        phases = SimpleNamespace(
            decode=SimpleNamespace(backend=decode), prefill=SimpleNamespace(backend=prefill)
        )
        graph = SimpleNamespace(cuda_graph_config=phases)
        monkeypatch.setattr(on_cuda, "get_exec", lambda: SimpleNamespace(graph=graph))
        on_cuda.prepare_cuda()
        return hooked

    return prepare


def test_it_warns_and_lets_the_attention_store_kv(prepared, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        [(target, hook, kind, *_)] = prepared("disabled", "disabled")
    assert (target, kind) == (FUSED, HookType.REPLACE)
    assert hook(None) is False
    assert "experimental on GPUs: no server has run" in caplog.text


@pytest.mark.parametrize(
    ("decode", "prefill", "flags"),
    [
        ("full", "disabled", "add --disable-decode-cuda-graph."),
        ("disabled", "breakable", "add --disable-prefill-cuda-graph."),
        ("full", "full", "add --disable-decode-cuda-graph and --disable-prefill-cuda-graph."),
    ],
)
def test_cuda_graphs_are_refused(prepared, decode, prefill, flags) -> None:
    with pytest.raises(UnsupportedError, match="does not work with CUDA graphs") as refused:
        prepared(decode, prefill)
    assert str(refused.value).endswith(flags)


@pytest.mark.parametrize(
    "flags",
    [
        ("--disable-decode-cuda-graph", "--disable-prefill-cuda-graph"),
        ("--disable-cuda-graph",),
        ("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
    ],
)
def test_these_flags_are_what_sglang_takes(flags) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = prepare_server_args(["--model-path", "dummy", *flags])
        parse_cuda_graph_config(record)
    graphs = resolved_view(record).cuda_graph_config
    assert (graphs.decode.backend, graphs.prefill.backend) == ("disabled", "disabled")


def test_the_package_for_copies_is_asked_for(prepared, monkeypatch) -> None:
    monkeypatch.setattr(on_cuda, "has_batched_copies", lambda: False)
    with pytest.raises(UnsupportedError, match="needs the package cuda-bindings on a GPU"):
        prepared("disabled", "disabled")


def test_the_pool_is_put_in_place_there_as_on_the_cpu() -> None:
    """The hook is on the class that all platforms inherit this from."""
    assert CudaSRTPlatform.get_kv_pool_cls is SRTPlatform.get_kv_pool_cls


def test_the_hooks_ask_for_it_on_a_gpu(monkeypatch) -> None:
    """SGLang's platform for NVIDIA GPUs names its device by an object, others by a string."""
    platform = SimpleNamespace(get_device=lambda: torch.device("cuda", 0))
    monkeypatch.setattr(layerwise_hooks, "current_platform", platform)

    def refuse() -> None:
        raise UnsupportedError("asked")

    monkeypatch.setattr(layerwise_hooks, "prepare_cuda", refuse)
    with pytest.raises(UnsupportedError, match="asked"):
        layerwise_hooks.register_layerwise(LayerwiseSettings("even", 2.0), admits=True)
