"""Sizes of an emulated device: derived from its memory, as given, or refused."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tokenflow_sgl.lab.profiles import DeviceProfile, ProfileError
from tokenflow_sgl.lab.profiles.pool import kv_pool_tokens
from tokenflow_sgl_emulator.emulator_seam import is_older

if is_older():
    pytest.skip("that SGLang has no timed device", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang warns on import that there is no GPU
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
    from sglang.srt.server_args import ServerArgs

    from tokenflow_sgl_emulator.timed import timed_host_pool
    from tokenflow_sgl_emulator.timed.device_defaults import REFUSED, apply_device_defaults

MakeProfile = Callable[..., DeviceProfile]


def server_args(**given: object) -> SimpleNamespace:
    """SGLang's recorder with these values given."""
    raw: dict[str, object] = dict.fromkeys(
        ("max_total_tokens", "mem_fraction_static", "chunked_prefill_size")
    )
    raw |= {name: allowed for name, (allowed, _) in REFUSED.items()}
    raw |= {"disaggregation_mode": "null", "disaggregation_transfer_backend": "mooncake"}
    raw |= {"dtype": "auto", "load_format": "auto", **given}
    return SimpleNamespace(**raw, _raw_input=raw)


@pytest.mark.parametrize(
    ("gib", "chunk"), [(16, 2048), (24, 4096), (48, 4096), (80, 8192), (141, 8192), (192, 16384)]
)
def test_device_defaults_are_sglangs_for_that_memory(
    make_profile: MakeProfile, gib: int, chunk: int
) -> None:
    args = server_args()
    profile = replace(make_profile(), device_memory=gib << 30)
    apply_device_defaults(args, profile)
    assert args.chunked_prefill_size == chunk
    assert args.max_total_tokens == profile.kv_pool_tokens
    assert (args.load_format, args.dtype) == ("dummy", "bfloat16")


def test_device_defaults_keep_what_is_given(make_profile: MakeProfile) -> None:
    given = {"max_total_tokens": 100, "chunked_prefill_size": 64, "dtype": "float16"}
    args = server_args(**given)
    apply_device_defaults(args, make_profile())
    assert {name: getattr(args, name) for name in given} == given


@pytest.mark.parametrize("asked", [None, 100, 1 << 40])
def test_a_given_share_of_memory_is_of_the_devices(
    make_profile: MakeProfile, asked: int | None
) -> None:
    profile = make_profile()
    args = server_args(mem_fraction_static=0.5, max_total_tokens=asked)
    apply_device_defaults(args, profile)
    memory, weights = profile.device_memory, profile.weight_bytes
    fits = kv_pool_tokens(memory, weights, profile.kv_bytes_per_token, fraction=0.5)
    assert fits == (memory / 2 - weights) // profile.kv_bytes_per_token != profile.kv_pool_tokens
    assert args.max_total_tokens == min(fits, asked or fits)
    assert args.mem_fraction_static == 0.5


def test_a_share_that_the_weights_do_not_fit_into_is_refused(make_profile: MakeProfile) -> None:
    args = server_args(mem_fraction_static=0.01)
    with pytest.raises(ProfileError, match=r"the weights take 1\.1 GB, and the share 0\.01"):
        apply_device_defaults(args, make_profile())


ASKED: dict[str, Any] = {
    "tp_size": 2,
    "dp_size": 2,
    "pp_size": 2,
    "speculative_algorithm": "NGRAM",
    "enable_lora": True,
    "lora_paths": ["a=/tmp/a"],
    "kv_cache_dtype": "fp8_e5m2",
    "quantization": "fp8",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_emulated_is_refused(make_profile: MakeProfile, name: str) -> None:
    assert hasattr(ServerArgs, name)
    option = f"--{name.replace('_', '-')} is {ASKED[name]!r}: "
    with pytest.raises(ValueError) as refused:
        apply_device_defaults(server_args(**{name: ASKED[name]}), make_profile())
    assert str(refused.value).startswith(option)
    assert str(refused.value).endswith(f"; allowed is {REFUSED[name][0]!r}")


def host_pool(profile: DeviceProfile, monkeypatch: pytest.MonkeyPatch, **size: Any) -> Any:
    """Of 3,000 token slots on the device, in pages of 16, with rows of 8 bytes in each layer."""
    monkeypatch.setattr(timed_host_pool, "the_device", lambda: SimpleNamespace(profile=profile))
    rows = tuple(torch.zeros(3000, 1, 2, dtype=torch.bfloat16) for _ in range(profile.layers))
    table = torch.zeros(profile.layers, dtype=torch.uint64)
    buffers = KVBuffers(
        k=rows, v=rows, k_data_ptrs=table, v_data_ptrs=table, layout=KVBufferLayout.NHD
    )
    info = MHABufferInfo(
        buffers=buffers,
        page_size=16,
        head_num=1,
        head_dim=2,
        v_head_dim=2,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    with host_memory_budget_scope(1 << 30):
        return timed_host_pool.TimedHostPool(
            info,
            size.get("ratio", 2.0),
            size.get("gigabytes", 0),
            16,
            "page_first",
            device_capacity_tokens=3000,
            start_layer=0,
            end_layer=profile.layers,
        )


def test_a_host_pool_in_gigabytes_holds_the_devices_kv(
    make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = replace(make_profile(), kv_bytes_per_token=100_000)
    pool = host_pool(profile, monkeypatch, gigabytes=2)
    assert pool.size == 20_000 + 16, "SGLang keeps a page for itself"
    assert host_pool(profile, monkeypatch, ratio=2.0).size == 6000 + 16


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_half_of_a_pair_is_refused(make_profile: MakeProfile, mode: str) -> None:
    args = server_args(disaggregation_mode=mode)
    with pytest.raises(ValueError, match=f"--disaggregation-mode is '{mode}': .* pair of two"):
        apply_device_defaults(args, make_profile())


def test_a_decode_server_that_is_handed_what_it_asks_for_is_emulated(
    make_profile: MakeProfile,
) -> None:
    transfer = {"disaggregation_transfer_backend": "fake"}
    apply_device_defaults(server_args(disaggregation_mode="decode", **transfer), make_profile())
    with pytest.raises(ValueError, match="pair of two"):
        apply_device_defaults(
            server_args(disaggregation_mode="prefill", **transfer), make_profile()
        )
