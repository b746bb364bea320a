"""`--tokenflow-layerwise`: what it takes, with what it is refused, and that off changes nothing."""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine.config import TokenFlowConfig
from tokenflow_sgl.engine.flags import add_arguments, attach, attach_layers, layers_from
from tokenflow_sgl.engine.layerwise.layerwise_refusals import check_device, check_layers
from tokenflow_sgl.engine.layerwise_settings import LayerwiseSettings, layerwise_of
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.policy import ConfigError

EVEN = LayerwiseSettings("even", 2.0)


def args(**other: object) -> SimpleNamespace:
    plain = {"disable_radix_cache": False, "attention_backend": None}
    return SimpleNamespace(**{**plain, **other})


def parsed(*words: str) -> LayerwiseSettings | None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return layers_from(parser.parse_args(words))


def test_it_is_off_unless_asked_for() -> None:
    assert parsed() is None
    assert parsed("--tokenflow-layerwise", "off") is None
    assert parsed("--tokenflow-layerwise-ratio", "4") is None
    assert parsed("--tokenflow-layerwise", "even") == EVEN
    words = "--tokenflow-layerwise", "even", "--tokenflow-layerwise-ratio", "4"
    assert parsed(*words) == LayerwiseSettings("even", 4.0)
    assert layerwise_of(args()) is None


@pytest.mark.parametrize("ratio", ["0.5", "nan", "5000"])
def test_a_ratio_out_of_range_is_refused(ratio) -> None:
    with pytest.raises(ConfigError, match=r"layerwise_ratio is .*; allowed is 1 to 1024"):
        parsed("--tokenflow-layerwise", "even", "--tokenflow-layerwise-ratio", ratio)


def test_it_rides_on_the_servers_options() -> None:
    server = args(attention_backend="torch_native")
    attach_layers(server, EVEN)
    assert layerwise_of(server) == LayerwiseSettings("even", 2.0, "torch_native")
    assert server.attention_backend == "tokenflow_layerwise"


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"radix_cache_backend": "mine"}, "--radix-cache-backend mine"),
        ({"enable_session_radix_cache": True}, "--enable-session-radix-cache True"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache True"),
        ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm EAGLE"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype fp8_e5m2"),
        ({"pp_size": 2}, "--pp-size 2"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode decode"),
        ({"enable_memory_saver": True}, "--enable-memory-saver True"),
        ({"decode_attention_backend": "triton"}, "--decode-attention-backend triton"),
        ({"enable_torch_compile": True}, "--enable-torch-compile True"),
        ({"enable_deterministic_inference": True}, "--enable-deterministic-inference True"),
        ({"rl_on_policy_target": "fsdp"}, "--rl-on-policy-target fsdp"),
    ],
)
def test_what_it_cannot_work_with_is_refused_in_a_sentence(other, named) -> None:
    server = args(**other)
    with pytest.raises(UnsupportedError) as refused:
        attach_layers(server, EVEN)
    message = str(refused.value)
    assert message.startswith("--tokenflow-layerwise")
    assert named in message
    assert message.endswith(".")
    assert message.count(". ") == 0
    assert layerwise_of(server) is None


@pytest.mark.parametrize("without", [False, True])
def test_our_scheduler_needs_no_prefix_cache_and_no_copies(without) -> None:
    server = args(disable_radix_cache=without)
    attach(server, TokenFlowConfig(layerwise="even"))
    assert layerwise_of(server) is not None
    assert not getattr(server, "enable_hierarchical_cache", False), "paused KV is not copied"


def test_without_layers_it_needs_one() -> None:
    with pytest.raises(UnsupportedError, match="True: KV of paused streams is kept in the radix"):
        attach(args(disable_radix_cache=True), TokenFlowConfig())


@pytest.mark.parametrize("name", ["restore", "block_groups"])
def test_what_makes_copies_larger_or_fetches_them_is_refused(name) -> None:
    given = {name: "auto" if name == "restore" else True}
    with pytest.raises(UnsupportedError, match="does not work with --tokenflow-layerwise: it is"):
        attach(args(), TokenFlowConfig(layerwise="even", **given))


@pytest.mark.parametrize(
    ("device", "rocm", "name"),
    [("npu", False, "npu"), ("xpu:1", False, "xpu:1"), ("cuda", True, "AMD GPUs")],
)
def test_other_devices_are_refused(device, rocm, name) -> None:
    with pytest.raises(UnsupportedError, match=f"does not work on {name}: it is experimental"):
        check_device(device, rocm=rocm)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_the_cpu_and_nvidias_gpus_are_served(device) -> None:
    check_device(device)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"is_mla": True}, "MLA"),
        ({"is_hybrid_swa": True}, "sliding windows"),
        ({"is_hybrid_ssm": True}, "state-space"),
        ({"is_generation": False}, "embedding"),
        ({"is_encoder_decoder": True}, "encoder"),
    ],
)
def test_models_that_it_does_not_serve_are_refused(other, named) -> None:
    kinds = ("is_hybrid_swa", "is_hybrid_ssm", "is_mla", "is_encoder_decoder")
    served = {"is_generation": True, **dict.fromkeys(kinds, False)}
    check_layers(**served)
    with pytest.raises(UnsupportedError, match=named):
        check_layers(**{**served, **other})


def test_the_offline_engine_takes_it_with_sglangs_scheduler(monkeypatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tokenflow_sgl.engine import offline
    started = {}
    monkeypatch.setattr(offline, "load_plugins", lambda: None)
    monkeypatch.setattr(offline.SGLangEngine, "__init__", lambda _, **given: started.update(given))
    monkeypatch.setattr(offline.Engine, "server_args_class", staticmethod(args))
    offline.Engine(tokenflow_layerwise="even", tokenflow_layerwise_ratio=3.0)
    assert layerwise_of(started["server_args"]) == LayerwiseSettings("even", 3.0)
    with pytest.raises(UnsupportedError, match="--pp-size 2"):
        offline.Engine(tokenflow_layerwise="even", pp_size=2)
    offline.Engine(tokenflow_layerwise="off", model_path="m")
    assert started["model_path"] == "m"


OFF = """
import sys
import warnings
from types import SimpleNamespace
from tokenflow_sgl.engine import plugin
from sglang.srt.plugins.hook_registry import HookRegistry
register, made = HookRegistry.register, []
HookRegistry.register = lambda target, *rest, **more: made.append(target)
plugin._before_configure_scheduler(SimpleNamespace())
ours = [name for name in sys.modules if name.startswith("tokenflow_sgl.engine.layerwise.")]
print(sorted(name.rpartition(".")[2] for name in ours), made)
"""


@pytest.mark.slow
@pytest.mark.long
def test_off_nothing_of_it_is_loaded_or_hooked() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OFF], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[-1] == "[] []"
