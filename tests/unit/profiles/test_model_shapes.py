from __future__ import annotations

import pytest

from tokenflow_sgl.lab.profiles import DEVICES, MODELS


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # as counted in the published checkpoints
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama2-7b", 6_738_415_616),
        ("yi-34b", 34_388_917_248),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-235b-a22b", 235_093_634_560),
    ],
)
def test_parameters_of_the_shapes(name: str, parameters: int) -> None:
    assert MODELS[name].parameters == parameters
    assert MODELS[name].weight_bytes == 2 * parameters


def test_kv_and_attention_by_hand() -> None:
    llama = MODELS["llama3-8b"]
    assert llama.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2 == 131072
    assert llama.attention_flops == 4 * 32 * 4096


def test_a_token_goes_through_some_experts() -> None:
    moe = MODELS["qwen3-30b-a3b"]
    # 120 of 128 experts of 3 * 2048 * 768 weights in 48 layers are left out.
    assert moe.active_parameters == moe.parameters - 48 * 120 * 3 * 2048 * 768
    assert moe.kv_bytes_per_token == 98304
    assert moe.read_bytes(1) == 2 * moe.active_parameters
    assert moe.read_bytes(8) < moe.read_bytes(64) < moe.weight_bytes
    assert moe.read_bytes(4096) == pytest.approx(moe.weight_bytes)
    llama = MODELS["llama3-8b"]
    assert llama.read_bytes(1) == llama.weight_bytes == 2 * llama.active_parameters


def test_a_group_holds_what_its_devices_cannot_divide_several_times() -> None:
    llama, moe = MODELS["llama3-70b"], MODELS["qwen3-235b-a22b"]
    # 8 KV heads: one for each of eight devices, so that only norms are on all of them.
    assert llama.held_kv_bytes(8) == llama.kv_bytes_per_token == 327680
    assert llama.held_weight_bytes(1) == llama.weight_bytes
    assert llama.held_weight_bytes(8) == llama.weight_bytes + 7 * 2 * (80 * 2 * 8192 + 8192)
    # 4 KV heads on eight devices: each is there twice, with its projections of keys and values.
    assert moe.held_kv_bytes(4) == moe.kv_bytes_per_token == 192512
    assert moe.held_kv_bytes(8) == 385024
    norms_and_router = 2 * 4096 + 2 * 128 + 4096 * 128
    more = 7 * (94 * norms_and_router + 4096) + 94 * 2 * 4 * 128 * 4096
    assert moe.held_weight_bytes(8) == moe.weight_bytes + 2 * more


def test_names_are_the_keys() -> None:
    assert all(name == model.name for name, model in MODELS.items())
    assert all(name == device.name for name, device in DEVICES.items())
