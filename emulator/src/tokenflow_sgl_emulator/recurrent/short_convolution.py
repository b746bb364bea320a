"""Causal convolutions over the last few tokens, whose inputs are kept per request."""

from functools import partial
from typing import Any

import torch
from torch.nn.functional import silu

from tokenflow_sgl_emulator.recurrent import draft_states

_ACTIVATIONS = {None: False, False: False, True: True, "silu": True, "swish": True}


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens_cpu: list[int],
    cache_indices: torch.Tensor,
    has_initial_state: torch.Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int = -1,
    **_rest: Any,
) -> torch.Tensor:
    """Prompts, or chunks of them; the state of each is replaced by its last inputs.

    Args:
        x: Inputs of all requests in a row, [channels, tokens].
        weight: [channels, width].
        bias: [channels].
        conv_states: [slots, channels, at least width - 1], changed in place.
        query_start_loc: Where each request begins, and the end, [requests + 1].
        seq_lens_cpu: Ignored; it follows from `query_start_loc`.
        cache_indices: Slot of each request.
        has_initial_state: Whether a request goes on from its state; None: none does.
        activation: SiLU, or None.
        pad_slot_id: Slot of rows that only pad the batch.

    Returns:
        [channels, tokens].
    """
    out = torch.empty_like(x)
    starts, slots = query_start_loc.tolist(), cache_indices.tolist()
    goes_on = [False] * len(slots) if has_initial_state is None else has_initial_state.tolist()
    for begin, end, slot, known in zip(starts, starts[1:], slots, goes_on, strict=False):
        if slot == pad_slot_id or begin == end:
            continue
        state = conv_states[slot] if known else torch.zeros_like(conv_states[slot])
        seen = torch.cat([state, x[:, begin:end].to(state.dtype)], dim=1)
        out[:, begin:end] = convolve(seen, weight, bias, end - begin, activation).to(x.dtype)
        conv_states[slot] = seen[:, seen.shape[1] - state.shape[1] :]
    return out


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = None,
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
    pad_slot_id: int = -1,
    **drafts: Any,
) -> torch.Tensor:
    """One token of each request, [requests, channels]; shapes as of `causal_conv1d_fn`.

    Drafts that are verified are [requests, channels, drafts]; see `draft_states.convolve`.

    Raises:
        NotImplementedError: Of states that are rings.
    """
    if cache_seqlens is not None or conv_state_indices is None:
        raise NotImplementedError("the emulator's convolutions have no states that are rings")
    if x.dim() == 3:
        by_taps = partial(convolve, weight=weight, bias=bias, new=1, activation=activation)
        return draft_states.convolve(x, conv_state[conv_state_indices.long()], by_taps, **drafts)
    out = torch.empty_like(x)
    for row, slot in enumerate(conv_state_indices.tolist()):
        if slot == pad_slot_id:
            continue
        state = conv_state[slot]
        seen = torch.cat([state, x[row, :, None].to(state.dtype)], dim=1)
        out[row] = convolve(seen, weight, bias, 1, activation)[:, 0].to(x.dtype)
        conv_state[slot] = seen[:, 1:]
    return out


def convolve(
    seen: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    new: int,
    activation: str | bool | None,
) -> torch.Tensor:
    """Outputs of the last `new` inputs, float64, [channels, new]."""
    width = weight.shape[1]
    windows = seen[:, seen.shape[1] - new - width + 1 :].double().unfold(1, width, 1)
    out = (windows * weight.double()[:, None]).sum(-1)
    if bias is not None:
        out = out + bias.double()[:, None]
    return silu(out) if _ACTIVATIONS[activation] else out
