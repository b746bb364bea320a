"""SGLang's Triton backend in Triton's interpreter, over its own pool and over an arena: a program.

Prints one JSON object; see `main`. TRITON_INTERPRET=1 has to be set before Triton is imported.
"""

from __future__ import annotations

import json
import sys
import warnings
from types import SimpleNamespace

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from attention_steps import HEADS, KV_HEADS, LAYERS, STEPS, TOKENS, WIDTH, Server, ours, runner
    from layerwise_body import switches_of
    from sglang.srt.configs.model_config import AttentionArch
    from sglang.srt.layers.attention import triton_backend
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    from tokenflow_sgl.engine.layerwise.layerwise_attention import LayerwiseAttention
    from tokenflow_sgl_emulator.attention import ReferenceAttention

from tokenflow_sgl.engine.layerwise import start_check
from tokenflow_sgl.engine.layerwise.cell_table import CellTable
from tokenflow_sgl.engine.refusal import UnsupportedError

RUNS = (1, False), (16, True)
"""Tokens of a page, and whether it is as on a GPU: lengths on the host, a table of its own."""
FEW = STEPS[:3]


def publish(*, deterministic: bool) -> None:
    """What the backend asks SGLang's configuration of the process for."""
    kernel = SimpleNamespace(
        enable_lean_attention=False,
        triton_attention_num_kv_splits=8,
        triton_attention_split_tile_size=None,
    )
    execution = SimpleNamespace(
        kernel=kernel,
        dllm=SimpleNamespace(dllm_algorithm=None),
        deterministic=SimpleNamespace(enable_deterministic_inference=deterministic),
    )
    names = "num_draft_tokens", "num_steps", "eagle_topk"
    drafts = SimpleNamespace(**{f"speculative_{name}": None for name in names})
    parallel = SimpleNamespace(attn_dcp_size=1, attn_dcp_rank=0, attn_tp_size=1)
    triton_backend.get_exec = lambda: execution
    triton_backend.get_spec = lambda: drafts
    triton_backend.get_parallel = lambda: parallel
    triton_backend.get_schedule = lambda: SimpleNamespace(chunked_prefill_size=64)
    triton_backend.mambaish_config = lambda _: None


def made(page: int, pool_class: type, window: int | None = None) -> SimpleNamespace:
    """A runner with what this backend asks for beside."""
    found = runner(page, pool_class)
    found.model_config = SimpleNamespace(
        attention_arch=AttentionArch.MHA,
        get_max_num_attention_heads=lambda: HEADS,
        get_num_kv_heads=lambda *_: KV_HEADS,
        head_dim=WIDTH,
        v_head_dim=WIDTH,
        swa_v_head_dim=WIDTH,
        context_len=TOKENS,
        is_encoder_decoder=False,
        hf_config=SimpleNamespace(),
    )
    found.sliding_window_size = window
    found.decode_num_tokens_per_req = lambda: 1
    found.is_draft_worker = False
    found.spec_algorithm = SimpleNamespace(is_dspark=lambda: False)
    found.kv_cache_dtype = torch.float32
    found.gpu_id = 0
    return found


def far(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    """The largest difference."""
    return max(float((a - b).abs().max()) for a, b in zip(expected, found, strict=True))


def misled(where, layer: int, places: torch.Tensor) -> torch.Tensor:
    """The first place of the last layer is another one's."""
    found = where(layer, places)
    if layer == LAYERS - 1 and len(found) > 1:
        found[0] = found[-1]
    return found


def compared(page: int, as_on_gpu: bool) -> dict[str, float]:
    """One run of all steps."""
    steps = STEPS if as_on_gpu else STEPS[:6]  # each takes seconds in the interpreter
    plain = made(page, MHATokenToKVPool)
    by_torch = Server(plain, ReferenceAttention(plain)).run(steps)
    plain = made(page, MHATokenToKVPool)
    own_pool = Server(plain, triton_backend.TritonAttnBackend(plain), known=as_on_gpu).run(steps)
    placed = made(page, ours())
    pool = placed.token_to_kv_pool
    if as_on_gpu:
        pool.cells = CellTable(pool.executor.places, page, "cpu", mirrored=True)
    backend = LayerwiseAttention(placed, "triton")
    start_check.check_attention(backend._view.inner, pool)
    switches = switches_of(pool.executor)
    found = Server(placed, backend, known=as_on_gpu).run(steps)
    return {
        "from_torch": far(by_torch, found),
        "from_own_pool": far(own_pool, found),
        "switches": sum(switches),
        "fetched": pool.executor.fetched,
    }


def noticed(page: int) -> dict[str, float | str]:
    """What comes of one wrong cell: in steps, and in the check at start."""
    plain, placed = made(page, MHATokenToKVPool), made(page, ours())
    by_torch = Server(plain, ReferenceAttention(plain)).run(FEW)
    backend = LayerwiseAttention(placed, "triton")
    where = placed.token_to_kv_pool.cells.where
    placed.token_to_kv_pool.cells.where = lambda *given: misled(where, *given)
    steps = far(by_torch, Server(placed, backend, known=True).run(FEW))
    kernel = backend._view.inner.decode_attention_fwd

    def elsewhere(*given, **more) -> None:
        places = given[5].clone()
        places[0] = 0
        kernel(*given[:5], places, *given[6:], **more)

    backend._view.inner.decode_attention_fwd = elsewhere
    try:
        start_check.check_attention(backend._view.inner, placed.token_to_kv_pool)
    except start_check.StartCheckError as error:
        return {"steps": steps, "at_start": str(error)}
    return {"steps": steps, "at_start": ""}


def refused() -> dict[str, str]:
    """The sentences for what the view does not serve."""
    found = {}
    for name, window in (("deterministic", None), ("window", 8)):
        publish(deterministic=name == "deterministic")
        try:
            LayerwiseAttention(made(1, ours(), window), "triton")
        except UnsupportedError as error:
            found[name] = str(error)
    return found


def main() -> int:
    """Differences, what is noticed of one wrong cell, and what is refused."""
    publish(deterministic=False)
    found = {
        "runs": [compared(*run) for run in RUNS],
        "noticed": noticed(16),
        "refused": refused(),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
