"""The ledger's rows for models with recurrent states."""

from tokenflow_sgl_emulator.emulator_seam import KERNEL, POOL_COPIES, Seam, is_older

_CONVOLUTION = "sglang.kernels.ops.mamba.causal_conv1d_triton."
_HOST_STATES = "sglang.srt.mem_cache.pool_host.mamba.MambaPoolHost."
RECURRENT = (
    Seam(_CONVOLUTION + "causal_conv1d_fn", "replace", KERNEL),
    Seam(_CONVOLUTION + "causal_conv1d_update", "replace", KERNEL),
    Seam(_HOST_STATES + "load_to_device_per_layer", "replace", POOL_COPIES),
    Seam(_HOST_STATES + "backup_from_device_all_layer", "replace", POOL_COPIES),
)
"""Hooked for models with recurrent states (:mod:`tokenflow_sgl_emulator.recurrent`), only there."""
STATE_MEMORY = Seam(_HOST_STATES + "__init__", "around", POOL_COPIES)
KEPT_STATES = Seam(
    "sglang.srt.mem_cache.memory_pool.MambaPool.get_cpu_copy",
    "around",
    "States of retracted requests are copied where device and host are one, too.",
)
TRACK_PINNING = Seam(
    "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_decode",
    "around",
    "Tracked states pin memory without asking the platform.",
)
"""Hooked with these."""
_GDN = "sglang.srt.layers.attention.linear.kernels.gdn_triton.TritonGDNKernel."
_FLA = "sglang.kernels.ops.attention.fla."
_SCATTER = "sglang.kernels.ops.mamba.mamba_state_scatter_triton."
_LINEAR = _FLA if is_older() else "sglang.kernels.ops.attention.linear."
DELTA_RULE = (
    Seam(_LINEAR + "fused_gdn_gating.fused_gdn_gating", "replace", KERNEL),
    Seam(_GDN + "extend", "replace", KERNEL),
    Seam(_GDN + "packed_decode", "replace", KERNEL),
    Seam(_GDN + "target_verify", "replace", KERNEL),
    Seam(
        "sglang.kernels.ops.attention.triton_gdn_fused_proj."
        "fused_qkvzba_split_reshape_cat_contiguous",
        "replace",
        KERNEL,
    ),
    Seam(_FLA + "layernorm_gated.RMSNorm.forward", "replace", KERNEL),
    Seam("sglang.kernels.ops.elementwise.elementwise.fused_sigmoid_mul", "replace", KERNEL),
    Seam(_SCATTER + "track_mamba_states_all_layers", "replace", KERNEL),
    Seam(_SCATTER + "scatter_mamba_states_after_mtp_verify", "replace", KERNEL),
)
"""Hooked beside them for gated delta networks."""

STATES = (*RECURRENT, STATE_MEMORY, TRACK_PINNING, KEPT_STATES, *DELTA_RULE)
