"""Which drafts of its tree each draft sees."""

from typing import Any

import torch


def draft_masks(spec_info: Any, lengths: list[int]) -> list[torch.Tensor | None] | None:
    """A mask [drafts, drafts] for each row, None where it only pads the batch; None: chains.

    SGLang gives the masks of all requests one after the other: of the drafts alone, or of each
    request's whole context, in front of which the columns of its tokens are. Batches are padded
    for data-parallel ranks, where SGLang has EAGLE's drafts only, with masks of the drafts alone.

    Args:
        spec_info: SGLang's, of a pass that verifies drafts.
        lengths: Of the contexts without drafts.
    """
    drafts, mask = int(spec_info.draft_token_num), spec_info.custom_mask
    if mask is None or getattr(spec_info, "tree_topk", -1) == 1:
        return None
    if mask.numel() <= len(lengths) * drafts * drafts:
        of_drafts = list(mask.view(-1, drafts, drafts).bool())
        return [*of_drafts, *[None] * (len(lengths) - len(of_drafts))]
    found: list[torch.Tensor | None] = []
    at = 0
    for length in lengths:
        columns = length + drafts
        whole = mask[at : at + drafts * columns].view(drafts, columns)
        found.append(whole[:, length:].bool())
        at += drafts * columns
    return found
