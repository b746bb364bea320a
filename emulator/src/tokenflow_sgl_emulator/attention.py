"""Reference attention: plain torch, exact, and the same numbers however requests are batched.

A request's result must not depend on its neighbours in the batch, on where its KV lives, or on how
its prompt was cut into chunks; otherwise a test that compares tokens cannot tell a rounding
difference from a real bug. So each request is computed by itself, over its own tokens in order,
without padding, in float64, and only the result is rounded to the model's type. (A padded batch in
float32, measured, differs in the last bits for every row of a batch of 16.)
"""

from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from torch.nn.functional import scaled_dot_product_attention

from tokenflow_sgl_emulator.speculation.draft_masks import draft_masks

QUERY_BLOCK = 256
"""Queries attended at a time, so that the mask of a 32k context stays at 64 MiB."""


class ReferenceAttention(TorchNativeAttnBackend):
    """SGLang's torch backend with both inner loops replaced; it keeps the KV writes.

    Causal self-attention is ours, with sliding windows and without, and that of drafts, which see
    their own branch of a tree. What else the base class can do (cross-attention, encoders) is left
    to it.
    """

    _drafts = 0  # tokens of each request that the present pass verifies
    _trees: list[torch.Tensor | None] | None = None

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Length of rows that only pad a batch: of drafts, or of data-parallel ranks."""
        return 1

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """A forward pass begins. Where it verifies drafts, these are its new tokens."""
        super().init_forward_metadata(forward_batch)
        self._drafts, self._trees = 0, None
        if forward_batch.forward_mode.is_target_verify():
            self._drafts = int(forward_batch.spec_info.draft_token_num)
            self._trees = draft_masks(forward_batch.spec_info, forward_batch.seq_lens.tolist())
            forward_batch.extend_prefix_lens = forward_batch.seq_lens
            forward_batch.extend_seq_lens = torch.full_like(forward_batch.seq_lens, self._drafts)

    def _run_sdpa_forward_extend(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        extend_prefix_lens: torch.Tensor,
        extend_seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        scaling: float | None = None,
        enable_gqa: bool = False,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
    ) -> torch.Tensor:
        """Attend ``extend_seq_lens[i]`` new tokens of each request to its ``seq_lens[i]`` tokens.

        Shapes: ``query`` and ``output`` [tokens, heads, dim]; the caches [slots, KV heads, dim];
        ``req_to_token`` [requests, context] maps a position to its cache slot.
        """
        if not causal or encoder_lens is not None:
            return super()._run_sdpa_forward_extend(
                query,
                output,
                k_cache,
                v_cache,
                req_to_token,
                req_pool_indices,
                seq_lens,
                extend_prefix_lens,
                extend_seq_lens,
                encoder_lens,
                scaling,
                enable_gqa,
                causal,
                is_cross_attn,
                sliding_window_size,
            )
        start = 0
        lengths = (seq_lens + self._drafts).tolist()
        trees = self._trees or [None] * len(lengths)
        rows = zip(req_pool_indices.tolist(), lengths, extend_seq_lens.tolist(), trees, strict=True)
        for row, length, new, tree in rows:
            slots = self._slots(req_to_token[row, :length], sliding_window_size)
            output[start : start + new] = _attend(
                query[start : start + new],
                _gather(k_cache, slots),
                _gather(v_cache, slots),
                scaling,
                sliding_window_size,
                tree,
            )
            start += new
        return output

    def _run_sdpa_forward_decode(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        scaling: float | None = None,
        enable_gqa: bool = False,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
    ) -> torch.Tensor:
        """Attend one new token of each request; shapes as in the extend case."""
        if is_cross_attn or encoder_lens is not None:
            return super()._run_sdpa_forward_decode(
                query,
                output,
                k_cache,
                v_cache,
                req_to_token,
                req_pool_indices,
                seq_lens,
                encoder_lens,
                scaling,
                enable_gqa,
                causal,
                is_cross_attn,
                sliding_window_size,
            )
        rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
        for i, (row, length) in enumerate(rows):
            slots = self._slots(req_to_token[row, :length], sliding_window_size)
            output[i] = _attend(
                query[i : i + 1],
                _gather(k_cache, slots),
                _gather(v_cache, slots),
                scaling,
                sliding_window_size,
            )[0]
        return output

    def _slots(self, slots: torch.Tensor, window: int | None) -> torch.Tensor:
        """Where a layer has these tokens: those with a window have a pool of their own.

        What has left the window has no place there any more; slot 0, which no request has, stands
        for it.
        """
        if window is None or not self.use_sliding_window_kv_pool:
            return slots
        places: torch.Tensor = self.token_to_kv_pool.translate_loc_from_full_to_swa(slots)
        return places


def _gather(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows of a cache as [heads, tokens, dim]; ``index_select`` is 5 times ``cache[slots]``."""
    return cache.index_select(0, slots).movedim(0, 1).double()


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    window: int | None = None,
    tree: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of the last ``len(query)`` positions; returns float64 [tokens, heads, dim].

    Args:
        query: [new tokens, heads, dim].
        key: [KV heads, tokens, dim], float64; the new tokens are its last ones.
        value: Like ``key``.
        scale: Factor of the scores; None for ``dim ** -0.5``.
        window: How many tokens before it a query attends to; None: to all.
        tree: Which of the new tokens each of them sees, [new tokens, new tokens], at most
            ``QUERY_BLOCK``; None: those before it, and itself.
    """
    new, total = query.shape[0], key.shape[1]
    queries = query.movedim(0, 1).double()
    blocks = []
    for first in range(0, new, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, new)
        seen = total - new + last  # positions that the last query of the block may see
        mask = None
        if last - first > 1 or window is not None:
            at = torch.arange(seen)
            mask = at <= at[seen - (last - first) :, None]
            if tree is not None:
                mask[:, seen - new :] = tree
                at[seen - new :] = seen - new + tree.sum(-1) - 1  # branches lie side by side
            if window is not None:
                mask &= at >= at[seen - (last - first) :, None] - window
        blocks.append(
            scaled_dot_product_attention(
                queries[None, :, first:last],
                key[None, :, :seen],
                value[None, :, :seen],
                attn_mask=mask,
                scale=scale,
                enable_gqa=True,
            )[0]
        )
    return torch.cat(blocks, dim=1).movedim(1, 0)
