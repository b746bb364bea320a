"""Which SGLang options and models `--tokenflow-layerwise` does not serve, and why."""

from __future__ import annotations

from collections.abc import Iterator

from tokenflow_sgl.engine.refusal import Refusal, UnsupportedError
from tokenflow_sgl.engine.sglang.server import ServerArgs

OURS = "--tokenflow-layerwise"

_ELSEWHERE = "it moves or stores KV by itself, and looks for each layer where SGLang's own pool is"
_ANOTHER_POOL = "it brings a KV pool of its own"
_OPTIONS: tuple[tuple[str, object, str], ...] = (
    ("use_ray", False, "Ray workers do not load SGLang plugins"),
    ("disaggregation_mode", "null", "KV is handed over from SGLang's own pool"),
    ("enable_hierarchical_cache", False, _ELSEWHERE),
    ("enable_lmcache", False, _ELSEWHERE),
    ("enable_flexkv", False, _ELSEWHERE),
    ("enable_hisparse", False, _ELSEWHERE),
    ("radix_cache_backend", None, "only SGLang's own prefix cache has been tried"),
    ("enable_session_radix_cache", False, "sessions own their KV"),
    ("enable_unified_memory", False, _ANOTHER_POOL),
    ("enable_page_major_kv_layout", False, _ANOTHER_POOL),
    ("enable_kv_cache_sharding", False, _ANOTHER_POOL),
    ("prefill_only_disable_kv_cache", False, "then there is no KV to place"),
    ("kv_cache_dtype", "auto", "only KV in the model's own type has been tried"),
    ("enable_memory_saver", False, "it takes away and gives back the memory of SGLang's own pool"),
    ("speculative_algorithm", None, "a draft model has a pool of its own"),
    ("pp_size", 1, "pipeline stages have several batches under way, and the layers of one rank"),
    ("dcp_size", 1, "each rank has other tokens of a page"),
    ("attn_cp_size", 1, "each rank has other tokens of a page"),
    ("enable_dp_attention", False, "steps without streams have not been tried"),
    ("enable_pdmux", False, "it computes a prefill and a decode step at the same time"),
    ("enable_two_batch_overlap", False, "it computes two halves of a batch at the same time"),
    ("enable_single_batch_overlap", False, "it computes two halves of a batch at the same time"),
    ("encoder_only", False, "an encoder has no KV"),
    ("dllm_algorithm", None, "diffusion models compute a token several times"),
    ("enable_streaming_session", False, "sessions own their KV"),
    ("prefill_attention_backend", None, "one backend has to do prefill and decode steps"),
    ("decode_attention_backend", None, "one backend has to do prefill and decode steps"),
    ("enable_torch_compile", False, "a compiled step would not look anew where its KV lies"),
    ("enable_deterministic_inference", False, "its kernels read new tokens in SGLang's own pool"),
    ("rl_on_policy_target", None, "its kernels read new tokens in SGLang's own pool"),
)


def refused_layerwise(server_args: ServerArgs) -> Iterator[Refusal]:
    """All options that exclude it, in a record that is not resolved yet."""
    for name, plain, reason in _OPTIONS:
        value = getattr(server_args, name, plain)
        if value not in (plain, None):
            flag = "--" + name.replace("_", "-")
            sentence = f"{OURS} does not work with {flag} {value}: {reason}; remove one of the two."
            yield Refusal(flag, sentence)


def check_layerwise(server_args: ServerArgs) -> None:
    """Raise `UnsupportedError` for the first option that excludes it."""
    for refusal in refused_layerwise(server_args):
        raise UnsupportedError(refusal.sentence)


def check_device(device: str, *, rocm: bool = False) -> None:
    """Raise `UnsupportedError` on another device than the CPU and NVIDIA's GPUs.

    Args:
        device: As torch names it.
        rocm: Torch is one for AMD's GPUs, which it calls `cuda`, too.
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda") or rocm:
        name = "AMD GPUs" if rocm else device
        raise UnsupportedError(
            f"{OURS} does not work on {name}: it is experimental, and knows the CPU (the emulator) "
            "and NVIDIA GPUs only; start without it."
        )


def check_graphs(decode: str, prefill: str) -> None:
    """Raise `UnsupportedError` if steps are replayed: a CUDA graph would not wait for layers.

    decode, prefill: What SGLang captures these steps with; `disabled`: it does not.
    """
    flags = {"--disable-decode-cuda-graph": decode, "--disable-prefill-cuda-graph": prefill}
    missing = [flag for flag, backend in flags.items() if backend != "disabled"]
    if missing:
        raise UnsupportedError(
            f"{OURS} does not work with CUDA graphs: each step waits for layers of its own; add "
            f"{' and '.join(missing)}."
        )


def check_engine(*, there: bool) -> None:
    """Raise `UnsupportedError` if the copy engine cannot be told what to copy.

    there: Whether the package for it is installed.
    """
    if not there:
        raise UnsupportedError(
            f"{OURS} needs the package cuda-bindings on a GPU, 12.8 or newer and for the CUDA that "
            "torch is for: its copies take one call for many pages; install it."
        )


def check_layers(
    *,
    is_generation: bool,
    is_hybrid_swa: bool,
    is_hybrid_ssm: bool,
    is_mla: bool,
    is_encoder_decoder: bool,
) -> None:
    """Raise `UnsupportedError` for a model whose KV is not keys and values of every layer."""
    for kind, is_it in (
        ("embedding models", not is_generation),
        ("models with latent attention (MLA)", is_mla),
        ("models with layers of sliding windows beside others", is_hybrid_swa),
        ("Mamba or other state-space models", is_hybrid_ssm),
        ("models with an encoder", is_encoder_decoder),
    ):
        if is_it:
            raise UnsupportedError(
                f"{OURS} does not serve {kind}: it places keys and values of layers that all "
                "attend to all tokens; start without it."
            )
