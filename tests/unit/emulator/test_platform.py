"""What can be checked without a server: activation, ledger, attention, host pool."""

import inspect
import itertools
import os
import pkgutil
import warnings
from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest
import torch

from tokenflow_sgl_emulator import (
    ATTENTION_BACKEND_NAME,
    PLATFORM_NAME,
    archs,
    defaults,
    emulator_seams,
    platform_plugin,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang warns on import that there is no GPU
    from sglang.srt.mem_cache import host_memory
    from sglang.srt.mem_cache.pool_host import base
    from sglang.srt.model_executor.cuda_graph_config import CudaGraphConfig
    from sglang.srt.platforms.interface import SRTPlatform

    from tokenflow_sgl_emulator import attention, host_pool, mla_pool, platform
    from tokenflow_sgl_emulator.emulator_seam import is_older
    from tokenflow_sgl_emulator.speculation import draft_hooks


@pytest.mark.parametrize("chosen", [None, "", "other"])
def test_declines_unless_chosen(monkeypatch: pytest.MonkeyPatch, chosen: str | None) -> None:
    if chosen is None:
        monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    else:
        monkeypatch.setenv("SGLANG_PLATFORM", chosen)
    from sglang.srt.plugins.hook_registry import HookRegistry

    before = dict(HookRegistry._hooks)
    assert platform.activate() is None
    platform_plugin.register()
    assert HookRegistry._hooks == before


def test_activates_when_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"SGLANG_PLATFORM": PLATFORM_NAME})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    name = platform.activate()
    assert name is not None
    assert pkgutil.resolve_name(name) is platform.EmulatorPlatform


@pytest.mark.parametrize("mine", [None, "my.models"])
def test_tiny_models_start_without_importing_all_others(
    monkeypatch: pytest.MonkeyPatch, mine: str | None
) -> None:
    environment = {"SGLANG_PLATFORM": PLATFORM_NAME}
    if mine is not None:
        environment["SGLANG_EXTERNAL_MODEL_PACKAGE"] = mine
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    platform.activate()
    assert environment["SGLANG_EXTERNAL_MODEL_PACKAGE"] == (mine or archs.PACKAGE)


def test_refuses_a_visible_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLATFORM", PLATFORM_NAME)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeError, match="CUDA_VISIBLE_DEVICES"):
        platform.activate()


def server_args(**given: object) -> SimpleNamespace:
    """What SGLang's recorder looks like after its own CPU rule, with these values given."""
    raw = dict.fromkeys(
        ("attention_backend", "max_total_tokens", "mem_fraction_static", "chunked_prefill_size")
    )
    raw |= {"dtype": "auto", "lora_backend": "csgmv", "load_format": "auto"}
    raw |= {"max_mamba_cache_size": None, **given}
    resolved = {**raw, "attention_backend": raw["attention_backend"] or "intel_amx"}
    return SimpleNamespace(
        **resolved,
        cuda_graph_config=CudaGraphConfig(),
        _cuda_graph_config_locked=set(),
        _raw_input=raw,
        tp_size=1,
        pp_size=1,
        dp_size=1,
    )


def test_defaults_fill_what_is_open() -> None:
    args = server_args()
    defaults.apply_defaults(args)
    defaults.apply_model_defaults(args)
    assert args.attention_backend == ATTENTION_BACKEND_NAME
    assert args.dtype == "float32"
    assert args.max_total_tokens == defaults.MAX_TOTAL_TOKENS
    assert args.mem_fraction_static == defaults.MEM_FRACTION_STATIC
    assert args.chunked_prefill_size == defaults.CHUNKED_PREFILL_SIZE
    assert args.lora_backend == "torch_native"
    assert args.cuda_graph_config.decode.backend == "disabled"
    assert args.cuda_graph_config.prefill.backend == "disabled"


@pytest.mark.parametrize(
    "given",
    [
        {"attention_backend": "intel_amx", "dtype": "bfloat16", "max_total_tokens": 100},
        {"mem_fraction_static": 0.2, "chunked_prefill_size": 64, "lora_backend": "triton"},
    ],
)
def test_defaults_keep_what_is_given(given: dict[str, object]) -> None:
    args = server_args(**given)
    defaults.apply_defaults(args)
    defaults.apply_model_defaults(args)
    assert {name: getattr(args, name) for name in given} == given
    if "mem_fraction_static" in given:
        assert args.max_total_tokens is None


def test_ranks_get_cores_unless_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(defaults.CPU_BINDING_VARIABLE, "5|6")
    args = server_args()
    args.tp_size = 3
    defaults.apply_defaults(args)
    assert os.environ[defaults.CPU_BINDING_VARIABLE] == "5|6"
    monkeypatch.delenv(defaults.CPU_BINDING_VARIABLE)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 7})
    defaults.apply_defaults(args)
    assert os.environ[defaults.CPU_BINDING_VARIABLE] == "4|7|4"


def test_entry_points_are_installed() -> None:
    for group in ("sglang.srt.platforms", "sglang.srt.plugins"):
        (entry,) = entry_points(group=group, name=PLATFORM_NAME)
        assert callable(entry.load())


@pytest.mark.filterwarnings("ignore")  # importing all of SGLang says that there is no GPU
def test_ledger_matches_the_installed_sglang() -> None:
    draft_hooks.stand_in_library()
    for seam in emulator_seams.SEAMS:
        if seam in emulator_seams.TIMED_CLASSES and is_older():
            continue
        assert callable(pkgutil.resolve_name(seam.target)), seam


def test_every_method_of_the_platform_answers() -> None:
    """Of SGLang's interface all that it calls without knowing that the platform has none of it."""
    made = platform.EmulatorPlatform()
    refuses = "get_default_speculative_draft_attention_backend"  # SGLang says then what is missing
    needs = {"set_device": (torch.device("cpu"),)}
    asked = [
        name
        for name, method in inspect.getmembers(SRTPlatform, inspect.isfunction)
        if "raise NotImplementedError" in inspect.getsource(method) and name != refuses
    ]
    assert {"get_torch_profiler_activity", "get_device_total_memory"} <= {*asked}
    for name in asked:
        getattr(made, name)(*needs.get(name, ()))
    # Its own name would be recorded twice, by SGLang's other way of profiling.
    assert not hasattr(torch.profiler.ProfilerActivity, made.get_torch_profiler_activity_str())


def test_missing_hooks_are_named() -> None:
    # No plugin was loaded in this process, so none of the hooks is in place.
    with pytest.raises(RuntimeError, match="get_mha_host_pool_cls"):
        platform_plugin.check_active()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("above", ["AROUND", "REPLACE"])
def test_a_hook_of_another_plugin_is_none_of_ours(ours, above) -> None:
    from sglang.srt.plugins.hook_registry import HookType, _wrap_fn

    wrapped = lambda: None  # noqa: E731
    if ours:
        wrapped = _wrap_fn(wrapped, platform_plugin.without_reserve, HookType.AROUND)
    wrapped = _wrap_fn(wrapped, lambda *_: None, HookType[above])
    assert platform_plugin._is_hooked(wrapped) == (ours and above == "AROUND")


def test_attention_is_causal_and_does_not_depend_on_the_cut() -> None:
    torch.manual_seed(0)
    tokens, heads, kv_heads, dim, scale = 600, 4, 2, 16, 0.25
    query = torch.randn(tokens, heads, dim)
    key, value = torch.randn(2, kv_heads, tokens, dim).double()
    whole = attention._attend(query, key, value, scale).float()

    scores = query.double().movedim(0, 1) @ key.repeat_interleave(2, 0).mT * scale
    scores.masked_fill_(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -torch.inf)
    plain = (scores.softmax(-1) @ value.repeat_interleave(2, 0)).movedim(0, 1).float()
    torch.testing.assert_close(whole, plain, rtol=0, atol=1e-6)

    for cuts in ([0, 600], [0, 1, 600], [0, 255, 256, 257, 600], [*range(0, 601, 100)]):
        parts = [
            attention._attend(query[a:b], key[:, :b], value[:, :b], scale)
            for a, b in itertools.pairwise(cuts)
        ]
        assert torch.equal(torch.cat(parts).float(), whole), cuts


def test_attention_with_a_window_sees_the_last_tokens_only() -> None:
    torch.manual_seed(0)
    tokens, window = 300, 23
    query = torch.randn(tokens, 4, 16)
    key, value = torch.randn(2, 2, tokens, 16).double()
    whole = attention._attend(query, key, value, 0.25, window).float()
    for last in (0, 5, window, window + 1, tokens - 1):
        first = max(last - window, 0)
        seen = key[:, first : last + 1], value[:, first : last + 1]
        alone = attention._attend(query[last : last + 1], *seen, 0.25)
        torch.testing.assert_close(whole[last], alone[0].float(), rtol=0, atol=1e-6)
    for cut in (1, 100, 256):
        parts = [
            attention._attend(query[a:b], key[:, :b], value[:, :b], 0.25, window)
            for a, b in ((0, cut), (cut, tokens))
        ]
        assert torch.equal(torch.cat(parts).float(), whole), cut


@pytest.mark.parametrize("free", [5_000_000, 500])
def test_an_emulated_hosts_pool_leaves_no_memory_to_others(monkeypatch, free) -> None:
    def ask(size: int, *, auto_size: bool) -> int:
        """As SGLang does for a pool of a stated size, and to choose one."""
        return base.host_memory_budget_bytes(size, auto_size=auto_size)

    for module in (host_memory, base):
        monkeypatch.setattr(module, "available_host_memory_bytes", lambda **_: free)
    for auto_size in (False, True):
        assert platform_plugin.without_reserve(ask, 1000, auto_size=auto_size) == free
        left = free - base.HICACHE_HOST_MEMORY_RESERVE_BYTES
        assert ask(1000, auto_size=auto_size) == left, "the control"


def test_an_emulated_hosts_pool_is_not_pinned() -> None:
    class Pool(host_pool.PlainMemory, dict):
        """Remembers what it was made with."""

    assert Pool(pin_memory=True) == {"pin_memory": False}


class FakeSglangPool:
    """The buffers that SGLang's host pool makes, for 2 layers of 2 heads of width 4."""

    layers, heads, dim, pages = 2, 2, 4, 5

    def __init__(self, layout: str, page_size: int, pin_memory: bool = True) -> None:
        assert not pin_memory
        self.layout, self.page_size = layout, page_size
        self.layer_num = self.target_layer_num = self.layers
        tokens, slot = self.pages * page_size, (self.heads, self.dim)
        shape: tuple[int, ...] = {
            "layer_first": (self.layers, tokens, *slot),
            "page_first": (tokens, self.layers, *slot),
            "page_first_direct": (self.pages, self.layers, page_size, *slot),
            "page_head": (self.pages, self.heads, page_size, self.layers, self.dim),
        }[layout]
        self.k_buffer, self.v_buffer = torch.zeros(2, *shape)
        self.device_k_buffers, self.device_v_buffers = (
            tuple(torch.randn(3 * page_size, *slot) for _ in range(self.layers)) for _ in range(2)
        )


class TorchPool(host_pool.TorchCopies, FakeSglangPool):
    pass


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_host_copies_come_back(layout: str, page_size: int) -> None:
    pool = TorchPool(layout, page_size)
    slot = torch.arange(page_size)
    device = torch.cat([2 * page_size + slot, slot])
    host = torch.cat([page_size + slot, 4 * page_size + slot])
    wanted = [b[device].clone() for b in (*pool.device_k_buffers, *pool.device_v_buffers)]
    pool.backup_from_device_all_layer(None, host, device, "kernel")
    moved = torch.cat([page_size + slot, 2 * page_size + slot])  # loaded to other slots
    for buffer in (*pool.device_k_buffers, *pool.device_v_buffers):
        buffer.zero_()
    for layer in range(pool.layers):
        pool.load_to_device_per_layer(None, host, moved, layer, "kernel")
    for buffer, want in zip((*pool.device_k_buffers, *pool.device_v_buffers), wanted, strict=True):
        assert torch.equal(buffer[moved], want)


@pytest.mark.parametrize("slots", [[0, 1, 2], [1, 2, 3, 4], [0, 1, 3, 2]])
def test_host_copies_refuse_partial_pages(slots: list[int]) -> None:
    pool = TorchPool("layer_first", 4)
    with pytest.raises(ValueError, match="whole pages"):
        pool.load_to_device_per_layer(None, torch.tensor(slots), torch.arange(4), 0, "kernel")


def test_pools_without_a_twin_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="FakeSglangPool"):
        host_pool.torch_host_pool(FakeSglangPool)


class LatentPool:
    """What the copies read of SGLang's host pool of an MLA model: 2 layers of rows of width 6."""

    def __init__(self, layout: str, page_size: int) -> None:
        pages, layers, row = 5, 2, (1, 6)
        self.layout, self.page_size = layout, page_size
        shape: tuple[int, ...] = {
            "layer_first": (layers, pages * page_size, *row),
            "page_first": (pages * page_size, layers, *row),
            "page_first_direct": (pages, layers, page_size, *row),
        }[layout]
        self.kv_buffer = torch.zeros(shape)
        self.device_kv_buffers = tuple(torch.randn(3 * page_size, *row) for _ in range(layers))
        self._target_layer_indices = (0, 1)
        self._buffer_index_by_layer = self._host_layer_by_controller = {0: 0, 1: 1}


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_host_copies_of_latent_rows_come_back(layout: str, page_size: int) -> None:
    pool, slot = LatentPool(layout, page_size), torch.arange(page_size)
    device, host, moved = page_size + slot, 3 * page_size + slot, 2 * page_size + slot
    wanted = [buffer[device].clone() for buffer in pool.device_kv_buffers]
    mla_pool.backup_from_device_all_layer(pool, None, host, device, "kernel")
    for buffer in pool.device_kv_buffers:
        buffer.zero_()
    for layer in (0, 1, 2):  # SGLang asks for a layer that another pool has, too
        mla_pool.load_to_device_per_layer(pool, None, host, moved, layer, "kernel")
    for buffer, want in zip(pool.device_kv_buffers, wanted, strict=True):
        assert torch.equal(buffer[moved], want)


@pytest.mark.parametrize("timed", [True, False])
def test_steps_are_launched_ahead_of_a_device_with_a_clock_of_its_own(
    monkeypatch: pytest.MonkeyPatch, timed: bool
) -> None:
    monkeypatch.setattr(platform, "timing_is_on", lambda: timed)
    assert platform.EmulatorPlatform().launches_ahead is timed
