"""Server-argument defaults that let a tiny model start on a CPU with no flags at all.

A value that the user gave is never replaced. SGLang resolves arguments in many steps and some ran
before this one, so "given" is read from the raw input that SGLang keeps, not from what it is now.
"""

import os
from itertools import cycle, islice
from typing import Any

from tokenflow_sgl_emulator import ATTENTION_BACKEND_NAME
from tokenflow_sgl_emulator.emulator_seam import is_older

MAX_TOTAL_TOKENS = 65536
"""KV pool in tokens: 64 MiB for the default tiny model. SGLang would take half of the RAM."""

MEM_FRACTION_STATIC = 0.5
"""Upper bound of weights and KV pool as a share of the RAM; only a guard, the pool is capped."""

MAX_STATES = 256
"""Recurrent states, of models that have some. SGLang would take a share of the RAM."""

CHUNKED_PREFILL_SIZE = 2048
"""Tokens per prefill chunk. SGLang would choose by the amount of RAM, so by the machine."""

CPU_BINDING_VARIABLE = "SGLANG_CPU_OMP_THREADS_BIND"
NCCL_VARIABLE = "SGLANG_NCCL_SO_PATH"


def apply_defaults(server_args: Any) -> None:
    """Fill in what the user left open, for any model on this platform.

    Args:
        server_args: SGLang's recorder: reading gives the value resolved so far, writing declares
            a default, ``_raw_input`` maps every field to what the user gave (or its default).
    """
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase

    given: dict[str, Any] = server_args._raw_input

    # SGLang's own CPU rule ran before and chose an Intel kernel for "cpu".
    if given["attention_backend"] is None:
        server_args.attention_backend = ATTENTION_BACKEND_NAME
    if given["mem_fraction_static"] is None:
        server_args.mem_fraction_static = MEM_FRACTION_STATIC
    # SGLang's default needs Triton, which is not available here.
    if given["lora_backend"] == "csgmv":
        server_args.lora_backend = "torch_native"

    graphs = server_args.cuda_graph_config
    for phase in Phase.ALL:
        if (phase, "backend") not in server_args._cuda_graph_config_locked:
            graphs = with_phase(graphs, phase, backend=Backend.DISABLED)
    server_args.cuda_graph_config = graphs

    ranks = server_args.tp_size * server_args.pp_size * server_args.dp_size
    if ranks > 1:
        # SGLang wants one NUMA node per rank unless told which cores each rank may use. Ranks
        # inherit the environment of this process. With fewer cores than ranks, cores are shared.
        cores = islice(cycle(sorted(os.sched_getaffinity(0))), ranks)
        os.environ.setdefault(CPU_BINDING_VARIABLE, "|".join(map(str, cores)))
        if is_older():
            # It does not ask the platform about NCCL, but does without if it is not there.
            os.environ.setdefault(NCCL_VARIABLE, os.devnull)


def apply_model_defaults(server_args: Any) -> None:
    """Fill in what the user left open, for a tiny model that really computes."""
    given: dict[str, Any] = server_args._raw_input

    # "auto" turns float32 weights into float16, which is slow on a CPU and not exact.
    if given["dtype"] == "auto":
        server_args.dtype = "float32"
    if given["max_total_tokens"] is None and given["mem_fraction_static"] is None:
        server_args.max_total_tokens = MAX_TOTAL_TOKENS
    if given["max_mamba_cache_size"] is None:
        server_args.max_mamba_cache_size = MAX_STATES
    if given["chunked_prefill_size"] is None:
        server_args.chunked_prefill_size = CHUNKED_PREFILL_SIZE
