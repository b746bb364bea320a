"""Which drafts of its tree each draft sees."""

from typing import Any

import torch


def draft_masks(spec_info: Any, lengths: list[int]) -> list[torch.Tensor | None] | None:
    """A mask [drafts, drafts] for each request; None: all drafts are chains, or one request's.

    SGLang gives the masks of all requests one after the other: of the drafts alone, or of each
    request's whole context, in front of which the columns of its tokens are. Rows that only pad the
    batch of a data-parallel rank have none; only EAGLE's have such ranks, of the first form.

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
