"""Gated delta networks (GDN): a matrix per head and request that each token changes.

Token by token and in float64; the state is rounded to what the pool keeps after every token, as
decoding rounds it, so that a prompt leaves the state that its tokens would leave one by one.
"""

from typing import Any

import torch
from torch.nn.functional import silu, softplus

from tokenflow_sgl_emulator.recurrent.draft_states import chain

CHUNK = 64
"""Tokens from one state that a prefill hands out to the next; SGLang's kernels have as many."""


def gating(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logarithm of the decay, and how much of the error is written, of each token and head.

    Args:
        A_log: [heads].
        a: [tokens, heads].
        b: [tokens, heads].
        dt_bias: [heads].
        beta: Of the softplus.
        threshold: Of the softplus.

    Returns:
        Both [1, tokens, heads], float32.
    """
    steps = softplus(a.double() + dt_bias.double(), beta, threshold)
    return (-A_log.double().exp() * steps).float()[None], b.double().sigmoid().float()[None]


def extend(
    _kernel: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    ssm_states: torch.Tensor,
    cache_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    **_rest: Any,
) -> tuple[torch.Tensor, None, torch.Tensor]:
    """Prompts, or chunks of them.

    Args:
        q: [1, tokens, key heads, key width]; `k` likewise.
        k: Normalised here, as `q` is.
        v: [1, tokens, value heads, value width].
        g: As of `gating`; `beta` likewise.
        beta: See `g`.
        ssm_states: [slots, value heads, value width, key width], changed in place.
        cache_indices: Slot of each request.
        query_start_loc: Where each request begins, and the end.

    Returns:
        [1, tokens, value heads, value width]; and the state at the beginning of each `CHUNK` tokens
        of each request, [1, chunks, value heads, value width, key width].
    """
    tokens = _Tokens(q, k, v, g, beta, ssm_states.dtype)
    out = torch.empty(v.shape[1:], dtype=torch.float64)
    at_chunks = []
    starts = query_start_loc.tolist()
    for begin, end, slot in zip(starts, starts[1:], cache_indices.tolist(), strict=False):
        state = ssm_states[slot].double()
        for token in range(begin, end):
            if (token - begin) % CHUNK == 0:
                at_chunks.append(state.float())
            state, out[token] = tokens.after(state, token)
        ssm_states[slot] = state.to(ssm_states.dtype)
    chunks = torch.stack(at_chunks)[None] if at_chunks else out.new_empty(1, 0)
    return out.to(v.dtype)[None], None, chunks


def target_verify(
    _kernel: Any,
    *,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    ssm_states: torch.Tensor,
    cache_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    intermediate_states_buffer: torch.Tensor,
    intermediate_state_indices: torch.Tensor,
    retrieve_parent_token: torch.Tensor | None = None,
    **_rest: Any,
) -> torch.Tensor:
    """Drafts of each request: its state stays, and the one behind each draft goes to a buffer.

    Args:
        A_log: As of `gating`; `dt_bias`, `a` and `b` likewise.
        dt_bias: See there.
        q: As of `extend`; `k` and `v` likewise.
        k: See there.
        v: See there.
        a: See there.
        b: See there.
        ssm_states: See there; not changed.
        cache_indices: See there.
        query_start_loc: See there.
        intermediate_states_buffer: [rows, drafts, value heads, value width, key width].
        intermediate_state_indices: Row of each request there.
        retrieve_parent_token: Parents of drafts that are a tree, [requests, drafts].

    Returns:
        [1, tokens, value heads, value width].
    """
    g, beta = gating(A_log, a, b, dt_bias)
    tokens = _Tokens(q, k, v, g, beta, ssm_states.dtype)
    out = torch.zeros(v.shape[1:], dtype=torch.float64)
    starts = query_start_loc.tolist()
    places = zip(cache_indices.tolist(), intermediate_state_indices.tolist(), strict=False)
    for request, (begin, end, (slot, row)) in enumerate(
        zip(starts, starts[1:], places, strict=False)
    ):
        parents = chain(end - begin)
        if retrieve_parent_token is not None:
            parents = retrieve_parent_token[request].tolist()
        states = {-1: ssm_states[slot].double()}
        for node, parent in enumerate(parents):  # each stands behind its parent
            states[node], out[begin + node] = tokens.after(states[parent], begin + node)
            intermediate_states_buffer[row, node] = states[node]
    return out.to(v.dtype)[None]


def packed_decode(
    kernel: Any,
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: float,
    ssm_states: torch.Tensor,
    cache_indices: torch.Tensor,
    num_v_heads: int,
    head_v_dim: int,
    **_rest: Any,
) -> torch.Tensor:
    """One token of each request: queries, keys and values in one row, [requests, width]."""
    rows, width = len(mixed_qkv), ssm_states.shape[3]
    both = mixed_qkv.shape[1] - num_v_heads * head_v_dim
    q, k, v = mixed_qkv.split([both // 2, both // 2, num_v_heads * head_v_dim], dim=1)
    g, beta = gating(A_log, a, b, dt_bias)
    out, _, _ = extend(
        kernel,
        q.reshape(1, rows, -1, width),
        k.reshape(1, rows, -1, width),
        v.reshape(1, rows, num_v_heads, head_v_dim),
        g,
        beta,
        ssm_states=ssm_states,
        cache_indices=cache_indices,
        query_start_loc=torch.arange(rows + 1),
    )
    return out


def split_projections(
    mixed_qkvz: torch.Tensor,
    mixed_ba: torch.Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of a row in one, and z, b and a by value head."""
    rows, out = len(mixed_qkvz), num_heads_v * head_v
    qkv, z = mixed_qkvz.split([2 * num_heads_qk * head_qk + out, out], dim=1)
    b, a = mixed_ba.split(num_heads_v, dim=1)
    return qkv.contiguous(), z.reshape(rows, num_heads_v, head_v), b.contiguous(), a.contiguous()


def gated(
    attn_output: torch.Tensor, gate: torch.Tensor, inplace: bool = False, quant: bool = False
) -> torch.Tensor:
    """What attention returns, [tokens, width], times the sigmoid of its gate."""
    even = attn_output.double() * gate.reshape(attn_output.shape).double().sigmoid()
    return even.to(attn_output.dtype)


def gated_norm(norm: Any, x: torch.Tensor, z: torch.Tensor, *_rest: Any) -> torch.Tensor:
    """Rows of `x` at length 1 in the mean, times the weight and the activation of `z`."""
    wide = x.double()
    even = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps)
    gate = z.double().sigmoid() if norm.activation == "sigmoid" else silu(z.double())
    return (even * norm.weight.double() * gate).to(x.dtype)


def track_states(
    conv_states: torch.Tensor,
    ssm_states: torch.Tensor,
    cache_indices: torch.Tensor,
    mamba_track_mask: torch.Tensor,
    mamba_track_indices: torch.Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """Copy the states of marked rows to other slots, in all layers, [layers, slots, ...]."""
    rows = mamba_track_mask[:batch_size].nonzero()[:, 0]
    source, target = cache_indices[rows].long(), mamba_track_indices[rows].long()
    for states in (conv_states, ssm_states):
        states[:, target] = states[:, source]


class _Tokens:
    """What each token of a batch does to a state; arguments as of `extend`.

    dtype: What the pool keeps of a state.
    """

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        dtype: torch.dtype,
    ) -> None:
        shared = v.shape[2] // q.shape[2]
        self._queries = (_normalised(q[0]) * q.shape[3] ** -0.5).repeat_interleave(shared, dim=1)
        self._keys = _normalised(k[0]).repeat_interleave(shared, dim=1)
        self._values, self._decay, self._rate = v[0].double(), g[0].double().exp(), beta[0].double()
        self._dtype = dtype

    def after(self, state: torch.Tensor, token: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The state behind a token, and what it gives out; float64, rounded as the pool does."""
        key = self._keys[token][:, None]
        state = state * self._decay[token][:, None, None]
        known = (state * key).sum(-1)
        written = (self._values[token] - known) * self._rate[token][:, None]
        state = (state + written[:, :, None] * key).to(self._dtype).double()
        return state, (state * self._queries[token][:, None]).sum(-1)


def _normalised(rows: torch.Tensor) -> torch.Tensor:
    wide = rows.double()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)
