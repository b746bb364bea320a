"""What the doctor says that `--scheduler tokenflow` takes of a server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine import host_memory
from tokenflow_sgl.engine.config import build
from tokenflow_sgl.engine.consequences import UNREAD, KvSize, consequences, kv_size
from tokenflow_sgl.engine.host_memory import RESERVE, HostRoom, host_room

PLAIN = {
    **{"tp_size": 1, "pp_size": 1, "dp_size": 1, "attn_dp_size": 1, "nnodes": 1},
    **{"enable_dp_attention": False, "enable_hierarchical_cache": False},
    **{"hicache_size": 0, "hicache_ratio": None, "hicache_host_memory_fraction": 0.8},
    **{"max_total_tokens": None, "chunked_prefill_size": None, "enable_mixed_chunk": False},
    **{"speculative_algorithm": None, "disaggregation_mode": "null", "kv_cache_dtype": "auto"},
}
ROOM = HostRoom(RESERVE + 100_000_000_000)
KV = KvSize(100_000, "32 layers")


def record(**given):
    return SimpleNamespace(**{**PLAIN, **given})


def told(kv=KV, room=ROOM, plain=None, config=None, **given):
    ours = record(**{"enable_hierarchical_cache": True, **given})
    chosen = build(config or {})
    return dict(consequences(ours, plain or record(**given), chosen, kv, room))


def model(**given):
    return SimpleNamespace(
        **{
            "num_attention_layers": 32,
            "head_dim": 128,
            "v_head_dim": 128,
            "dtype": SimpleNamespace(itemsize=2),
            "attention_arch": SimpleNamespace(name="MHA"),
            "get_num_kv_heads": lambda ranks: max(1, 8 // ranks),
            **given,
        }
    )


def test_a_size_that_was_asked_for_is_summed_over_the_ranks() -> None:
    text = told(hicache_size=30, tp_size=4)["host memory"]
    assert "30.0 GB of host memory per rank, 120.0 GB in all (--hicache-size 30)" in text
    assert "this machine has 110.7 GB free" in text
    assert "SGLang will refuse that here: 25.0 GB per rank are left" in text


def test_replicas_together_can_be_more_than_sglang_notices() -> None:
    text = told(hicache_size=30, tp_size=2, dp_size=2)["host memory"]
    assert "30.0 GB of host memory per rank, 120.0 GB in all (--hicache-size 30)" in text
    assert "refuse" not in text
    assert "more than the 25.0 GB per rank that are left, which SGLang does not notice" in text
    assert "killed" not in told(hicache_size=25, tp_size=2, dp_size=2)["host memory"]
    assert "refuse" in told(hicache_size=51, tp_size=2, dp_size=2)["host memory"]


def test_a_machine_without_enough_is_warned_of() -> None:
    text = told(room=HostRoom(RESERVE))["host memory"]
    assert "SGLang will refuse to start: free some, or start with --tokenflow-hicache off" in text
    decodes = told(room=HostRoom(RESERVE), disaggregation_mode="decode")["host memory"]
    assert "refuse to start: free some;" in decodes


def test_ranks_of_another_machine_take_nothing_here() -> None:
    assert "60.0 GB in all" in told(hicache_size=30, tp_size=4, nnodes=2)["host memory"]


@pytest.mark.parametrize(
    "given",
    [{"tp_size": 4, "dp_size": 4, "enable_dp_attention": True}, {"tp_size": 4, "attn_dp_size": 4}],
    ids=("old spelling", "new spelling"),
)
def test_groups_of_dp_attention_are_ranks_that_count_once(given) -> None:
    assert "per rank, 40.0 GB in all" in told(hicache_size=10, **given)["host memory"]


def test_the_default_is_lowered_until_it_fits() -> None:
    text = told(max_total_tokens=200_000)["host memory"]
    assert "40.0 GB of host memory per rank, 40.0 GB in all (2 times --max-total-tokens)" in text
    text = told(max_total_tokens=2_000_000)["host memory"]
    assert "76.0 GB of host memory per rank, 76.0 GB in all (0.38 times" in text
    assert "refuse" not in text


def test_the_default_is_raised_on_a_machine_that_has_more() -> None:
    large = HostRoom(ROOM.free, total=ROOM.free, devices=1)
    text = told(max_total_tokens=200_000, room=large)["host memory"]
    assert "76.0 GB of host memory per rank, 76.0 GB in all (3.8 times" in text
    text = told(max_total_tokens=100_000, room=large)["host memory"]
    assert "40.0 GB of host memory per rank, 40.0 GB in all (4 times" in text
    assert "2 to 4 times the device's KV pool, whose size" in told(room=large)["host memory"]


def test_a_ratio_that_was_asked_for_is_not_lowered() -> None:
    text = told(max_total_tokens=2_000_000, hicache_ratio=2.0)["host memory"]
    assert "400.0 GB of host memory per rank" in text
    assert "SGLang will refuse that here: 100.0 GB per rank are left" in text


def test_an_unknown_pool_has_a_bound() -> None:
    text = told(tp_size=2)["host memory"]
    assert "2 times the device's KV pool, whose size is known when the server starts" in text
    assert "at most 38.0 GB of host memory per rank, 76.0 GB in all" in text
    assert "a token has 100,000 bytes of KV per rank (32 layers)" in text


def test_what_is_missing_is_said() -> None:
    text = told(kv=UNREAD, room=HostRoom(None, "the launch is for another machine"))["host memory"]
    assert "free host memory is not known (the launch is for another machine)" in text
    assert "bytes of KV per token are not known (the model's config.json was not read)" in text


def test_who_switched_hicache_on_is_said() -> None:
    assert told()["host memory"].startswith("HiCache is switched on by --scheduler tokenflow;")
    before = record(enable_hierarchical_cache=True)
    assert told(plain=before)["host memory"].startswith("HiCache is on;")
    off = told(enable_hierarchical_cache=False, config={"hicache": "off"})["host memory"]
    assert off == "HiCache stays off (--tokenflow-hicache off): none is taken for it"
    layers = told(enable_hierarchical_cache=False, config={"layerwise": "auto"})["host memory"]
    assert layers.startswith("HiCache stays off (--tokenflow-layerwise)")


def test_a_decode_server_has_a_pool_of_its_own() -> None:
    given = {"disaggregation_mode": "decode", "enable_hierarchical_cache": False}
    rows = told(hicache_ratio=2.0, **given)
    assert rows["host memory"].startswith("a pool for KV of paused streams is switched on by")
    assert rows["mixed chunks"] == "none: there are no prefills"
    assert "prefills" not in rows


@pytest.mark.parametrize(
    ("given", "config", "expected"),
    [
        ({}, {}, "on under stress"),
        ({"enable_mixed_chunk": True}, {}, "on, by --enable-mixed-chunk"),
        ({}, {"mixed_chunk": "off"}, "off, by mixed_chunk in the tuning file"),
        ({"speculative_algorithm": "EAGLE"}, {}, "off: a row of a prefill step verifies no drafts"),
    ],
)
def test_mixed_chunks_are_told(given, config, expected) -> None:
    assert told(config=config, **given)["mixed chunks"].startswith(expected)


def test_prefills_and_readers_are_told() -> None:
    rows = told(chunked_prefill_size=512, config={"default_rate": "7"})
    assert rows["prefills"].startswith("at most 512 tokens a step while streams decode")
    assert "count as read at 7 tokens/s" in rows["order"]
    assert "at most 2048 tokens" in told()["prefills"]
    assert "prefills" not in told(config={"policy": "stock"})


def test_kv_of_a_token_is_that_of_a_rank() -> None:
    assert kv_size(record(), model(), whole=True).bytes == 32 * 8 * 256 * 2
    assert kv_size(record(tp_size=4), model(), whole=True).bytes == 32 * 2 * 256 * 2
    assert kv_size(record(pp_size=2), model(), whole=True).bytes == 16 * 8 * 256 * 2
    small = record(kv_cache_dtype="fp8_e5m2")
    assert kv_size(small, model(), whole=True).bytes == 32 * 8 * 256
    attention = record(tp_size=4, attn_dp_size=4)
    assert kv_size(attention, model(), whole=True).bytes == 32 * 8 * 256 * 2
    latent = model(
        attention_arch=SimpleNamespace(name="MLA"), kv_lora_rank=512, qk_rope_head_dim=64
    )
    assert kv_size(record(tp_size=4), latent, whole=True).bytes == 32 * 576 * 2


def test_kv_that_is_not_derived_says_why() -> None:
    assert kv_size(record(), model(), whole=False).bytes is None
    scaled = kv_size(record(kv_cache_dtype="mxfp4"), model(), whole=True)
    assert scaled == KvSize(None, "--kv-cache-dtype mxfp4 has scales of its own")


def test_constants_are_sglangs() -> None:
    from sglang.srt.mem_cache import hicache_auto_size
    from sglang.srt.mem_cache.pool_host import base

    assert base.HICACHE_HOST_MEMORY_RESERVE_BYTES == host_memory.RESERVE
    assert hicache_auto_size._ALLOCATION_SLACK_FRACTION == host_memory.SLACK


def test_this_machine_is_asked() -> None:
    assert (host_room().free or 0) > 0


def test_a_machine_whose_control_groups_cannot_be_read_says_so(monkeypatch) -> None:
    from sglang.srt.mem_cache import host_memory

    def unreadable():
        raise PermissionError("no cgroup for you")

    monkeypatch.setattr(host_memory, "_cgroup_memory_headroom", unreadable)
    assert host_room() == HostRoom(None, "no cgroup for you")
