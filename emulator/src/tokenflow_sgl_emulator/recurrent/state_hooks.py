"""Puts the twins in place, in a process that is about to build a model with recurrent states."""

from functools import cache

from tokenflow_sgl_emulator.emulator_seam import Seam
from tokenflow_sgl_emulator.mla_pool import without_pinned_memory
from tokenflow_sgl_emulator.no_pinning import without_pinning
from tokenflow_sgl_emulator.platform_plugin import check_hooked
from tokenflow_sgl_emulator.recurrent import (
    delta_rule,
    draft_states,
    short_convolution,
    state_pool,
)
from tokenflow_sgl_emulator.recurrent.state_seams import (
    DELTA_RULE,
    KEPT_STATES,
    RECURRENT,
    STATE_MEMORY,
    TRACK_PINNING,
)

_TWINS = {
    "causal_conv1d_fn": short_convolution.causal_conv1d_fn,
    "causal_conv1d_update": short_convolution.causal_conv1d_update,
    "load_to_device_per_layer": state_pool.load_to_device_per_layer,
    "backup_from_device_all_layer": state_pool.backup_from_device_all_layer,
    "fused_gdn_gating": delta_rule.gating,
    "extend": delta_rule.extend,
    "packed_decode": delta_rule.packed_decode,
    "fused_qkvzba_split_reshape_cat_contiguous": delta_rule.split_projections,
    "forward": delta_rule.gated_norm,
    "fused_sigmoid_mul": delta_rule.gated,
    "track_mamba_states_all_layers": delta_rule.track_states,
    "target_verify": delta_rule.target_verify,
    "scatter_mamba_states_after_mtp_verify": draft_states.commit,
}
"""By the last name of the seam."""


@cache
def install_convolutions() -> None:
    """Replace SGLang's kernels for convolutions and states.

    Once per process: later calls do nothing. Modules that have imported a kernel get its twin, too.

    Raises:
        RuntimeError: SGLang did not apply a hook; the message names it.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(STATE_MEMORY.target, without_pinned_memory, HookType.AROUND)
    HookRegistry.register(TRACK_PINNING.target, without_pinning, HookType.AROUND)
    HookRegistry.register(KEPT_STATES.target, state_pool.copied, HookType.AROUND)
    _replace(RECURRENT)
    check_hooked((STATE_MEMORY, TRACK_PINNING, KEPT_STATES))


@cache
def install_delta_rule() -> None:
    """The same, and those of gated delta networks."""
    install_convolutions()
    _replace(DELTA_RULE)


def _replace(seams: tuple[Seam, ...]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for seam in seams:
        twin = _TWINS[seam.target.rpartition(".")[2]]
        HookRegistry.register(seam.target, twin, HookType.REPLACE)
    HookRegistry.apply_hooks()
    check_hooked(seams)
