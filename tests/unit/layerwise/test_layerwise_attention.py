"""Attention over the arena gives the numbers of attention over SGLang's own pool, bit for bit."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from attention_steps import KV_HEADS, LAYERS, WIDTH, Server, layer, ours, runner
    from layerwise_body import switches_of
    from sglang.srt.layers.attention import attention_registry
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from tokenflow_sgl.engine.layerwise.layerwise_attention import LayerwiseAttention
    from tokenflow_sgl_emulator.attention import ReferenceAttention

from tokenflow_sgl.engine.refusal import UnsupportedError


@pytest.fixture(autouse=True)
def backends(monkeypatch):
    monkeypatch.setitem(attention_registry.ATTENTION_BACKENDS, "reference", ReferenceAttention)
    monkeypatch.setitem(attention_registry.ATTENTION_BACKENDS, "other", lambda _: SimpleNamespace())


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("page", [1, 4])
def test_every_output_is_the_same(page, known) -> None:
    plain, placed = runner(page, MHATokenToKVPool), runner(page, ours())
    servers = [
        Server(plain, ReferenceAttention(plain)),
        Server(placed, LayerwiseAttention(placed, "reference"), known=known),
    ]
    executor = placed.token_to_kv_pool.executor
    switches = switches_of(executor)
    expected, found = (server.run() for server in servers)
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)
    assert sum(switches) > 5
    assert executor.fetched > 0
    for row in (1, 2, 3, 4):
        servers[1].end(row)
    assert executor.places.device.used == executor.places.host.used == 0


def test_a_step_of_no_stream_takes_no_page() -> None:
    """SGLang tunes kernels with steps of its padding row, 0."""
    made = runner(1, ours())
    backend = LayerwiseAttention(made, "reference")
    lengths = torch.ones(3, dtype=torch.int64)
    batch = SimpleNamespace(
        forward_mode=ForwardMode.DECODE,
        req_pool_indices=torch.zeros(3, dtype=torch.int64),
        seq_lens=lengths,
        seq_lens_cpu=lengths,
    )
    backend.init_forward_metadata(batch)
    places = made.token_to_kv_pool.executor.places
    assert not places.alive.any()
    assert places.device.used == places.host.used == 0


@pytest.mark.parametrize("shared", [True, False])
def test_kv_that_the_model_does_not_give_ends_the_server(shared) -> None:
    """It would be stored beside the arena, or be read of a layer whose cells are others' now."""
    backend = LayerwiseAttention(runner(1, ours()), "reference")
    key = None if shared else torch.zeros(1, KV_HEADS, WIDTH)
    with pytest.raises(RuntimeError, match="stores KV beside SGLang's attention, or shares"):
        backend.forward_decode(None, key, key, layer(LAYERS - 1), None, save_kv_cache=shared)


def test_what_models_ask_a_backend_for_is_there() -> None:
    made = runner(1, ours())
    backend = LayerwiseAttention(made, "reference")
    assert backend.token_to_kv_pool is made.token_to_kv_pool
    assert backend.req_to_token_pool is made.req_to_token_pool


def test_another_pool_or_allocator_ends_the_start() -> None:
    plain = runner(1, MHATokenToKVPool)
    with pytest.raises(RuntimeError, match="could not put its LayerwisePool in place"):
        LayerwiseAttention(plain, "reference")
    made = runner(1, ours())
    made.token_to_kv_pool_allocator = plain.token_to_kv_pool_allocator
    with pytest.raises(RuntimeError, match="could not put its TellingAllocator in place"):
        LayerwiseAttention(made, "reference")


def test_a_backend_that_reads_in_another_way_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="--attention-backend other: only"):
        LayerwiseAttention(runner(1, ours()), "other")


def test_on_gpus_only_the_triton_backend_is_served() -> None:
    made = runner(1, ours())
    made.device = "cuda"
    with pytest.raises(UnsupportedError, match="backend reference: on GPUs only triton"):
        LayerwiseAttention(made, "reference")
