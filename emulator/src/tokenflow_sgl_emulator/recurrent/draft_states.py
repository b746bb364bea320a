"""States behind each draft that is verified: those of what is accepted become the requests' own.

Drafts are a chain, or a tree whose nodes name their parents. A verification leaves the requests'
states as they are and writes one behind each node to a buffer; `commit` takes over one of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def parents_of(next_token: Sequence[int], next_sibling: Sequence[int]) -> list[int]:
    """The parent of each node of a tree; -1: it has none.

    Args:
        next_token: The first child of each node, -1 where there is none.
        next_sibling: The next child of the same parent, likewise.
    """
    parents = [-1] * len(next_token)
    for node, child in enumerate(next_token):
        while child != -1:
            parents[child] = node
            child = next_sibling[child]
    return parents


def chain(nodes: int) -> list[int]:
    """The parents of a chain."""
    return list(range(-1, nodes - 1))


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """The nodes from the root to this one."""
    path = [node]
    while (node := parents[node]) != -1:
        path.append(node)
    return path[::-1]


def convolve(
    x: torch.Tensor,
    states: torch.Tensor,
    by_taps: Callable[[torch.Tensor], torch.Tensor],
    *,
    intermediate_conv_window: torch.Tensor,
    intermediate_state_indices: torch.Tensor,
    retrieve_next_token: torch.Tensor | None = None,
    retrieve_next_sibling: torch.Tensor | None = None,
    retrieve_parent_token: torch.Tensor | None = None,
    **_rest: Any,
) -> torch.Tensor:
    """A convolution over each draft and what is before it.

    Args:
        x: Inputs, [requests, channels, drafts].
        states: The last inputs of each request, [requests, channels, width - 1 or more].
        by_taps: The last output of inputs [channels, any], [channels, 1].
        intermediate_conv_window: The buffer, [rows, drafts, channels, width - 1].
        intermediate_state_indices: Row of each request there.
        retrieve_next_token: Of drafts that are a tree, as `parents_of` takes it.
        retrieve_next_sibling: Likewise.
        retrieve_parent_token: Filled with their parents.

    Returns:
        As `x`.
    """
    out = torch.empty_like(x)
    for request, row in enumerate(intermediate_state_indices.tolist()[: len(x)]):
        parents = chain(x.shape[2])
        if retrieve_next_token is not None:
            assert retrieve_next_sibling is not None and retrieve_parent_token is not None
            children, siblings = retrieve_next_token[request], retrieve_next_sibling[request]
            parents = parents_of(children.tolist(), siblings.tolist())
            retrieve_parent_token[request] = torch.tensor(parents)
        for node in range(x.shape[2]):
            new = x[request][:, path_to(node, parents)].to(states.dtype)
            seen = torch.cat([states[request], new], dim=1)
            out[request, :, node] = by_taps(seen)[:, 0].to(x.dtype)
            window = intermediate_conv_window[row, node]
            window.copy_(seen[:, seen.shape[1] - window.shape[1] :])
    return out


def commit(
    mamba_caches: Any,
    state_indices_tensor: torch.Tensor,
    last_correct_step_indices: torch.Tensor,
    mamba_track_indices: torch.Tensor | None,
    mamba_steps_to_track: torch.Tensor | None,
    src_indices_raw: torch.Tensor | None = None,
) -> None:
    """Take over the states behind what was accepted, in all layers, and those that are tracked.

    Args:
        mamba_caches: SGLang's, states [layers, slots, ...] and buffers [layers, rows, nodes, ...].
        state_indices_tensor: Slot of each request; negative: it only pads the batch.
        last_correct_step_indices: Node of each request whose state becomes its own; -1: none.
        mamba_track_indices: Another slot of each request.
        mamba_steps_to_track: Node whose state goes there; -1: none.
        src_indices_raw: Row of each request in the buffers; None: they are in order.
    """
    rows = range(len(last_correct_step_indices))
    if src_indices_raw is not None:
        rows = src_indices_raw.tolist()
    kinds = list(zip(mamba_caches.conv, mamba_caches.intermediate_conv_window, strict=True))
    if mamba_caches.temporal.numel():
        kinds.append((mamba_caches.temporal, mamba_caches.intermediate_ssm))
    for slots, nodes in (
        (state_indices_tensor, last_correct_step_indices),
        (mamba_track_indices, mamba_steps_to_track),
    ):
        if slots is None or nodes is None:
            continue
        for row, slot, node in zip(rows, slots.tolist(), nodes.tolist(), strict=False):
            if slot < 0 or node < 0:
                continue
            for states, buffer in kinds:
                states[:, slot] = buffer[:, row, node].to(states.dtype)
