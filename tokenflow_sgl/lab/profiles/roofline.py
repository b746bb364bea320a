"""Step times from peak rates alone, for devices without measurements.

The roofline model (Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009): a step takes as
long as its arithmetic or its memory traffic, whichever is longer, at the share of the peak that
large kernels reach, plus a constant for launches and the engine's own work:

    decode  = max((W + S * K) / (0.85 * bandwidth), 2 P * B / (0.6 * flops)) + 1.5 ms
    prefill = max((2 P * N + a * A) / (0.6 * flops), W / (0.85 * bandwidth)) + 2 ms

with W weight bytes that the step reads, P weights that a token goes through (of a mixture of
experts fewer than all), K KV bytes per token, B rows, S the KV tokens that they read, N new
tokens, A attention work (sum of n_i * (prefix_i + n_i / 2)) and a = 4 * layers * heads * head_dim
FLOPs per query and key. Of a group of n devices each has an n-th of this work, and two all-reduces
follow in each layer, of the 2 * hidden bytes of each token:

    all-reduces = 2 * layers * (30 us + 2 * (n - 1) / n * tokens * 2 * hidden / 10 GB/s)

a ring over PCIe through host memory. Its two figures are estimates that nothing here measured. The
embedding counts as if it were multiplied, so that 2 P per token is 2
to 10 % too much.
"""

from __future__ import annotations

from tokenflow_sgl.lab.profiles.devices import Device
from tokenflow_sgl.lab.profiles.model_shapes import BYTES_PER_VALUE, Model
from tokenflow_sgl.lab.profiles.tables import DecodeTable, PrefillTable

BANDWIDTH_EFFICIENCY = 0.85
"""Share of the peak bandwidth that reading weights and KV reaches."""
COMPUTE_EFFICIENCY = 0.6
"""Share of the peak FLOPs that large matrix products reach, attention included."""
DECODE_OVERHEAD = 0.0015
"""Seconds per decode step beside the kernels' work."""
PREFILL_OVERHEAD = 0.002
"""Seconds per prefill step beside the kernels' work."""
REDUCE_LATENCY = 30e-6
"""Seconds of an all-reduce of nothing."""
REDUCE_BANDWIDTH = 10e9
"""Bytes per second that each device sends in an all-reduce."""

# Fine where the two branches of the maximum meet on one device or another, coarse elsewhere.
_BATCH = (1, 2, 4, 8, 16, 32, *range(48, 256, 16), *range(256, 512, 32), 512, 640, 768, 1024)
_CONTEXT = (
    *(1, 32, *range(64, 256, 16), 256, 384, 512, 768, 1024, 1536, 2048, 4096),
    *(8192, 16384, 65536, 131072),
)
_TOKENS = (1, 16, *range(24, 192, 8), 192, 224, 256, 320, 384, 512, 1024, 4096, 16384)
_ATTENDED = (32, 1024, 2048, 4096, 6144, *range(8192, 32768, 4096), 32768, 49152, 65536, 131072)


def decode_seconds(device: Device, model: Model, batch: float, context: float) -> float:
    """Time of a decode step of `batch` rows with `context` KV tokens each on average."""
    read = model.read_bytes(batch) + batch * context * model.held_kv_bytes(device.ranks)
    traffic = read / (BANDWIDTH_EFFICIENCY * device.bandwidth * device.ranks)
    compute = 2 * model.active_parameters * batch
    compute /= COMPUTE_EFFICIENCY * device.flops * device.ranks
    return max(traffic, compute) + reduce_seconds(device, model, batch) + DECODE_OVERHEAD


def prefill_seconds(device: Device, model: Model, tokens: float, attended: float) -> float:
    """Time of a prefill of `tokens` new tokens that attend to `attended` keys on average."""
    work = 2 * model.active_parameters * tokens + model.attention_flops * tokens * attended
    compute = work / (COMPUTE_EFFICIENCY * device.flops * device.ranks)
    traffic = model.read_bytes(tokens) / (BANDWIDTH_EFFICIENCY * device.bandwidth * device.ranks)
    return max(compute, traffic) + reduce_seconds(device, model, tokens) + PREFILL_OVERHEAD


def reduce_seconds(device: Device, model: Model, tokens: float) -> float:
    """Time of all all-reduces of a step of so many tokens; 0.0 on one device."""
    if device.ranks == 1:
        return 0.0
    sent = 2 * (device.ranks - 1) / device.ranks * tokens * model.hidden * BYTES_PER_VALUE
    return 2 * model.layers * (REDUCE_LATENCY + sent / REDUCE_BANDWIDTH)


def tables(device: Device, model: Model) -> tuple[DecodeTable, PrefillTable]:
    """Both formulas on a grid."""
    decode = DecodeTable(
        batch=_BATCH,
        context=_CONTEXT,
        seconds=tuple(
            tuple(decode_seconds(device, model, batch, context) for context in _CONTEXT)
            for batch in _BATCH
        ),
    )
    prefill = PrefillTable(
        tokens=_TOKENS,
        attended=_ATTENDED,
        seconds=tuple(
            tuple(prefill_seconds(device, model, tokens, attended) for attended in _ATTENDED)
            for tokens in _TOKENS
        ),
    )
    return decode, prefill


def source(device: Device) -> str:
    """Where these times come from, in words."""
    group = f", {device.ranks} of them with estimated all-reduces" if device.ranks > 1 else ""
    return (
        f"roofline from data-sheet figures ({device.bandwidth / 1e9:.0f} GB/s, "
        f"{device.flops / 1e12:.0f} TFLOPS bf16) at {BANDWIDTH_EFFICIENCY:.0%} of the bandwidth "
        f"and {COMPUTE_EFFICIENCY:.0%} of the FLOPs{group}"
    )
