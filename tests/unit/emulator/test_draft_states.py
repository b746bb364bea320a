"""States behind drafts: each is the one that the tokens up to it would leave, one by one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tokenflow_sgl_emulator.recurrent import delta_rule, draft_states, short_convolution

CHANNELS, WIDTH, SLOTS, DRAFTS = 6, 4, 5, 4
KEYS, VALUES, HEADS = 3, 5, 4
SLOT, ROW = 3, 1
"""Of the one request: in the pool, and in the buffers."""
TREE = ([1, 3, -1, -1], [-1, 2, -1, -1])
"""First children and next siblings: nodes 1 and 2 behind the root, 3 behind 1."""
SHAPES = {
    "chain": (None, [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]),
    "tree": (TREE, [[0], [0, 1], [0, 2], [0, 1, 3]]),
}


def made(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_parents_of_a_tree() -> None:
    assert draft_states.parents_of(*TREE) == [-1, 0, 0, 1]
    assert draft_states.parents_of([1, 2, -1], [-1] * 3) == draft_states.chain(3) == [-1, 0, 1]
    assert draft_states.path_to(3, [-1, 0, 0, 1]) == [0, 1, 3]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_convolution_over_drafts(shape) -> None:
    tree, paths = SHAPES[shape]
    weight, bias = made(CHANNELS, WIDTH, seed=1), made(CHANNELS, seed=2)
    pool = made(SLOTS, CHANNELS, WIDTH - 1, seed=3)
    before, x = pool.clone(), made(1, CHANNELS, DRAFTS, seed=4)
    windows = torch.zeros(2, DRAFTS, CHANNELS, WIDTH - 1)
    parents = torch.zeros(1, DRAFTS, dtype=torch.int64)
    children, siblings = (torch.tensor([each]) for each in tree or ([0], [0]))
    out = short_convolution.causal_conv1d_update(
        x,
        pool,
        weight,
        bias,
        "silu",
        conv_state_indices=torch.tensor([SLOT]),
        intermediate_conv_window=windows,
        intermediate_state_indices=torch.tensor([ROW]),
        retrieve_next_token=children if tree else None,
        retrieve_next_sibling=siblings if tree else None,
        retrieve_parent_token=parents if tree else None,
    )
    assert torch.equal(pool, before), "what is not accepted yet changes no state"
    for node, path in enumerate(paths):
        states = before.clone()
        for token in path:
            said = short_convolution.causal_conv1d_update(
                x[:, :, token],
                states,
                weight,
                bias,
                "silu",
                conv_state_indices=torch.tensor([SLOT]),
            )
        assert torch.equal(out[:, :, node], said)
        assert torch.equal(windows[ROW, node], states[SLOT])
    assert not windows[0].any()
    assert not tree or parents.tolist() == [[-1, 0, 0, 1]]


@pytest.mark.parametrize("shape", SHAPES)
def test_deltas_of_drafts(shape) -> None:
    tree, paths = SHAPES[shape]
    terms = {"A_log": made(HEADS, seed=1), "dt_bias": made(HEADS, seed=2)}
    a, b = made(DRAFTS, HEADS, seed=3), made(DRAFTS, HEADS, seed=4)
    q, k = (made(1, DRAFTS, HEADS // 2, KEYS, seed=seed) for seed in (5, 6))
    v = made(1, DRAFTS, HEADS, VALUES, seed=7)
    pool = made(SLOTS, HEADS, VALUES, KEYS, seed=8)
    before = pool.clone()
    buffer = torch.zeros(2, DRAFTS, HEADS, VALUES, KEYS)
    out = delta_rule.target_verify(
        None,
        **terms,
        q=q,
        k=k,
        v=v,
        a=a,
        b=b,
        ssm_states=pool,
        cache_indices=torch.tensor([SLOT]),
        query_start_loc=torch.tensor([0, DRAFTS]),
        intermediate_states_buffer=buffer,
        intermediate_state_indices=torch.tensor([ROW]),
        retrieve_parent_token=torch.tensor([[-1, 0, 0, 1]]) if tree else None,
    )
    assert torch.equal(pool, before), "what is not accepted yet changes no state"
    g, beta = delta_rule.gating(terms["A_log"], a, b, terms["dt_bias"])
    for node, path in enumerate(paths):
        states = before.clone()
        said, _, _ = delta_rule.extend(
            None,
            *(each[:, path] for each in (q, k, v, g, beta)),
            ssm_states=states,
            cache_indices=torch.tensor([SLOT]),
            query_start_loc=torch.tensor([0, len(path)]),
        )
        assert torch.equal(out[0, node], said[0, -1])
        assert torch.equal(buffer[ROW, node], states[SLOT])
    assert not buffer[0].any()


@pytest.mark.parametrize("rows", [None, [1, 0, 2]])
def test_what_is_accepted_becomes_the_state(rows) -> None:
    layers, requests = 2, 3
    conv, window = torch.zeros(layers, SLOTS, 2), made(layers, requests, DRAFTS, 2)
    ssm, behind = torch.zeros(layers, SLOTS, 3), made(layers, requests, DRAFTS, 3, seed=1)
    caches = SimpleNamespace(
        conv=[conv], intermediate_conv_window=[window], temporal=ssm, intermediate_ssm=behind
    )
    draft_states.commit(
        caches,
        torch.tensor([3, -1, 1]),  # the second request only pads the batch
        torch.tensor([2, 1, -1]),  # of the third nothing was accepted
        torch.tensor([4, 2, 0]),
        torch.tensor([0, -1, 1]),
        None if rows is None else torch.tensor(rows),
    )
    first, third = (0, 2) if rows is None else (rows[0], rows[2])
    for states, buffer in ((conv, window), (ssm, behind)):
        assert torch.equal(states[:, 3], buffer[:, first, 2])
        assert torch.equal(states[:, 4], buffer[:, first, 0])
        assert torch.equal(states[:, 0], buffer[:, third, 1])
        assert not states[:, [1, 2]].any()
