"""KV slots of drafts: twins of the kernels that read and write SGLang's table of them.

``req_to_token`` [requests, context] maps a position of a request to its KV slot.
"""

import torch


def slots_between(
    req_to_token: torch.Tensor, rows: torch.Tensor, start: torch.Tensor, end: torch.Tensor
) -> torch.Tensor:
    """The slots of ``[start[i], end[i])`` of each row, one row after the other; int64."""
    stretches = zip(rows.tolist(), start.tolist(), end.tolist(), strict=True)
    return torch.cat([req_to_token[row, first:last] for row, first, last in stretches]).long()


def extend_cache_locs(
    *,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
    device: object,
) -> torch.Tensor:
    """Where the tokens that are verified are written: ``get_speculative_cache_locs_fn``."""
    return slots_between(req_to_token, req_pool_indices, start_offset, end_offset)


def draft_cache_locs(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    topk: int,
    num_cols: int,
    positions: torch.Tensor | None = None,
    mrope: torch.Tensor | None = None,
) -> None:
    """Where the draft model writes: the ``topk * num_cols`` slots behind each sequence."""
    end = seq_lens + topk * num_cols
    out_cache_loc.copy_(slots_between(req_to_token, req_pool_indices, seq_lens, end))


def assign_slots(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    batch_size: int,
) -> None:
    """Enter the slots that were allocated into the table."""
    at = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        new = out_cache_loc[at : at + end - start]
        req_to_token[row, start:end] = new.to(req_to_token.dtype)
        at += end - start


def front_cache_locs(
    num_front: torch.Tensor, out_cache_loc: torch.Tensor, front: torch.Tensor
) -> None:
    """Pack the first ``num_front[i]`` slots of each request's window."""
    windows = out_cache_loc.view(len(num_front), -1)
    packed = [window[:count] for window, count in zip(windows, num_front.tolist(), strict=True)]
    found = torch.cat(packed)
    front[: len(found)] = found.to(front.dtype)


def accepted_cache_locs(
    accept_index: torch.Tensor,
    out_cache_loc: torch.Tensor,
    accept_out_cache_loc: torch.Tensor,
    size: int,
) -> None:
    """Pack the slots of what was accepted; -1 in the index: nothing more was."""
    picked = accept_index.flatten()
    picked = picked[picked > -1].long()
    accept_out_cache_loc[: len(picked)] = out_cache_loc[picked].to(accept_out_cache_loc.dtype)


def bonus_tokens(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus: torch.Tensor,
    accept_stride: int,
    batch_size: int,
) -> None:
    """The token behind the last accepted draft of each request."""
    last = torch.arange(len(accept_lens)) * accept_stride + accept_lens.long() - 1
    bonus.copy_(accept_tokens.flatten()[last].to(bonus.dtype))


def gather_extras(
    indices: torch.Tensor,
    topk_p: torch.Tensor,
    topk_index: torch.Tensor,
    output_tokens: torch.Tensor,
    hidden_states: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Rows of what overlap scheduling hands from one step to the next."""
    rows = indices.long()
    hidden = None if hidden_states is None else hidden_states[rows]
    return topk_p[rows], topk_index[rows], output_tokens[rows], hidden
