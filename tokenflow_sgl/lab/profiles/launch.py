"""How long the CPU takes to launch a step whose kernels are not one CUDA graph.

The CPU launches kernels ahead of the device, so a step takes as long as the slower of the two: its
kernels, or its launch. What SGLang 0.5.23 launches how (`srt/model_executor/runner/`):

- decode steps: one CUDA graph, up to `cuda_graph_config.decode.max_bs` rows; kernel by kernel
  beyond;
- prefill and mixed steps, on CUDA: pieces of a graph (`breakable`, the default), one per layer,
  with the attention between them launched by itself. Captured up to the size of a chunk.

aiconfigurator-core has no launch costs. The two per layer are estimates from public measurements,
for a server's CPU:

- `EAGER_LAYER`: 11.3 ms per decode step of Llama-3-8B, 32 layers, on four devices without graphs,
  9.6 ms with them (vllm-project/vllm#44275). 16.6 and 16.4 ms for 129 and 513 tokens of Qwen3-4B,
  36 layers, without graphs, against 5.7 and 13.7 ms with them (wejoncy/sfllm#46): the launch is a
  lower limit and is not added. By `benchmarks/gpu` 10.2 to 11.8 ms on an H200, 32 layers, 1 to 256
  rows.
- `PIECE_LAYER`: of what whole graphs save, breakable ones save 83 % (450 ms without graphs, 369 ms
  breakable, 352 ms whole; mean latencies on an H200, sgl-project/sglang-omni#1379).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenflow_sgl.lab.profiles.document import ProfileError

EAGER_LAYER = 0.35e-3
"""Seconds per layer to launch a step kernel by kernel."""
PIECE_LAYER = 0.13e-3
"""Seconds per layer to launch a step in pieces of a graph, with the attention between them."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Lower limits of step times that the CPU sets. Profiles of measured steps have none.

    Attributes:
        prefill: Seconds of a prefill step or a mixed one at least.
        decode: Seconds of a decode step at least that has more than `graph_rows` rows.
        graph_rows: Rows of the largest decode step that is one CUDA graph.

    Raises:
        ProfileError: A value is outside its range.
    """

    prefill: float = 0.0
    decode: float = 0.0
    graph_rows: int = 0

    def __post_init__(self) -> None:
        for name in ("prefill", "decode", "graph_rows"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ProfileError(f"launch: {name} is {value!r}; allowed is 0 or more.")


NO_LAUNCH = Launch()
"""Nothing is known of the CPU, or the steps were measured with it."""


def default_launch(layers: int, graph_rows: int, *, prefill_graphs: bool = True) -> Launch:
    """What SGLang launches as, with its defaults or without CUDA graphs of prefills."""
    per_layer = PIECE_LAYER if prefill_graphs else EAGER_LAYER
    return Launch(layers * per_layer, layers * EAGER_LAYER, graph_rows)
