"""Twins of SGLang's kernels for drafts, checked against what they are for."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tokenflow_sgl_emulator.models import make_tiny_model
from tokenflow_sgl_emulator.speculation import draft_slots, draft_trees
from tokenflow_sgl_emulator.speculation.draft_masks import draft_masks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang warns on import that there is no GPU
    from tokenflow_sgl_emulator import attention
    from tokenflow_sgl_emulator.emulator_seams import SPECULATION
    from tokenflow_sgl_emulator.speculation import draft_hooks, draft_steps

import itertools

from tokenflow_sgl_emulator.draft_models import make_tiny_draft, make_tiny_mtp
from tokenflow_sgl_emulator.latent_draft_models import make_tiny_latent_mtp
from tokenflow_sgl_emulator.state_draft_models import make_tiny_deltas_mtp

PARENTS = [[-1, 0, 0, 1, 2, 2], [-1, 0, 1, 2, 3, 4]]
"""Two trees of six nodes: one that branches, and a chain."""


def masks(parents: list[list[int]]) -> torch.Tensor:
    found = torch.zeros(len(parents), len(parents[0]), len(parents[0]), dtype=torch.bool)
    for tree, of_each in enumerate(parents):
        for node in range(len(of_each)):
            at = node
            while at >= 0:
                found[tree, node, at] = True
                at = of_each[at]
    return found


def test_a_tree_is_described_by_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    links = SimpleNamespace(_derive_tree_links=derive_links)
    monkeypatch.setitem(__import__("sys").modules, "sglang.srt.speculative.ngram_worker", links)
    positions, index, child, sibling = (torch.zeros(2, 6, dtype=torch.int64) for _ in range(4))
    draft_trees.describe_trees(
        masks(PARENTS).flatten(),
        torch.tensor([10, 20]),
        positions.view(-1),
        index,
        child,
        sibling,
        2,
        6,
    )
    assert positions.tolist() == [[10, 11, 11, 12, 12, 12], [20, 21, 22, 23, 24, 25]]
    assert index.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert child.tolist() == [[1, 3, 4, -1, -1, -1], [1, 2, 3, 4, 5, -1]]
    assert sibling.tolist() == [[-1, 2, -1, -1, 5, -1], [-1] * 6]


def derive_links(mask, requests, nodes):
    """First children and next siblings, worked out from the parents."""
    child = torch.full((requests, nodes), -1)
    sibling = torch.full((requests, nodes), -1)
    for tree, of_each in enumerate(PARENTS):
        for node in range(nodes):
            children = [each for each in range(nodes) if of_each[each] == node]
            if children:
                child[tree, node] = children[0]
            for one, other in itertools.pairwise(children):
                sibling[tree, one] = other
    return child, sibling


def test_a_chain_is_described() -> None:
    requests, nodes = 2, 4
    mask = torch.zeros(requests * nodes * nodes, dtype=torch.bool)
    positions = torch.zeros(requests * nodes, dtype=torch.int64)
    index, child, sibling = (torch.zeros(requests, nodes, dtype=torch.int64) for _ in range(3))
    lengths = torch.tensor([5, 9])
    described = (mask, positions, index, child, sibling)
    draft_trees.build_chain(None, None, lengths, *described, 1, 3, nodes, 1)
    assert torch.equal(mask.view(requests, nodes, nodes), masks([[-1, 0, 1, 2]] * 2))
    assert positions.tolist() == [5, 6, 7, 8, 9, 10, 11, 12]
    assert index.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert child.tolist() == [[1, 2, 3, -1]] * 2
    assert sibling.tolist() == [[-1] * 4] * 2
    with pytest.raises(ValueError, match="speculative_eagle_topk is 2; allowed"):
        draft_trees.build_chain(None, None, lengths, *described, 2, 3, nodes, 1)


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ([7, 9, 9, 9, 9, 9], []),  # the first draft is wrong
        ([11, 13, 9, 9, 9, 9], [1, 3]),
        ([12, 9, 15, 9, 9, 9], [2, 5]),  # the second child of the second child
        ([12, 9, 8, 9, 9, 9], [2]),
    ],
)
def test_drafts_are_accepted_as_long_as_the_model_says_the_same(said, path) -> None:
    tokens = torch.tensor([[10, 11, 12, 13, 14, 15]])
    child = torch.tensor([[1, 3, 4, -1, -1, -1]])
    sibling = torch.tensor([[-1, 2, -1, -1, 5, -1]])
    predicts = torch.zeros(6, dtype=torch.int32)
    index, count = torch.full((1, 4), -1), torch.zeros(1, dtype=torch.int32)
    draft_trees.verify_greedy(
        predicts, index, count, tokens, torch.arange(6)[None], child, sibling, torch.tensor([said])
    )
    assert index.tolist() == [[0, *path, *[-1] * (3 - len(path))]]
    assert count.tolist() == [len(path)]
    # What comes behind each accepted node, the last one's is the token for nothing.
    assert [int(predicts[each]) for each in (0, *path)] == [said[each] for each in (0, *path)]


def test_masks_are_read_in_both_forms() -> None:
    trees, lengths = masks(PARENTS), [3, 5]
    spec = SimpleNamespace(draft_token_num=6, custom_mask=trees.flatten())
    whole = [
        torch.cat([torch.ones(6, length, dtype=torch.bool), tree], dim=1).flatten()
        for tree, length in zip(trees, lengths, strict=True)
    ]
    for mask in (trees.flatten(), torch.cat(whole)):
        spec.custom_mask = mask
        assert all(map(torch.equal, draft_masks(spec, lengths), trees))
    spec.tree_topk = 1
    assert draft_masks(spec, lengths) is None
    assert draft_masks(SimpleNamespace(draft_token_num=6, custom_mask=None), lengths) is None


def test_a_draft_sees_its_own_branch() -> None:
    """As if the nodes before it were all there is behind the context."""
    torch.manual_seed(0)
    context, nodes, heads, kv_heads, dim = 20, 6, 4, 2, 8
    query = torch.randn(nodes, heads, dim)
    key, value = torch.randn(2, kv_heads, context + nodes, dim).double()
    (tree, _) = masks(PARENTS)
    together = attention._attend(query, key, value, None, tree=tree).float()
    for node in range(nodes):
        seen = [*range(context), *(context + at for at in range(nodes) if tree[node, at])]
        alone = attention._attend(query[node : node + 1], key[:, seen], value[:, seen], None)
        assert torch.equal(alone.float()[0], together[node])


def test_slots_of_drafts_are_read_and_written() -> None:
    table = torch.arange(300, dtype=torch.int32).view(3, 100)
    rows, lengths = torch.tensor([2, 0]), torch.tensor([10, 4])
    out = torch.zeros(6, dtype=torch.int64)
    draft_slots.draft_cache_locs(rows, table, lengths, out, 1, 3)
    assert out.tolist() == [210, 211, 212, 4, 5, 6]
    found = draft_slots.extend_cache_locs(
        req_pool_indices=rows,
        req_to_token=table,
        start_offset=lengths,
        end_offset=lengths + 2,
        batch_size=2,
        draft_token_num=2,
        device="cpu",
    )
    assert found.tolist() == [210, 211, 4, 5]
    draft_slots.assign_slots(
        rows, table, lengths, torch.tensor([12, 5]), torch.tensor([7, 8, 9]), 2
    )
    assert table[2, 9:13].tolist() == [209, 7, 8, 212]
    assert table[0, 4].item() == 9
    front = torch.zeros(6, dtype=torch.int64)
    draft_slots.front_cache_locs(torch.tensor([2, 1]), torch.tensor([1, 2, 3, 4, 5, 6]), front)
    assert front.tolist() == [1, 2, 4, 0, 0, 0]
    packed = torch.zeros(4, dtype=torch.int64)
    picked = torch.tensor([[0, 2], [3, -1]])
    draft_slots.accepted_cache_locs(picked, torch.tensor([40, 41, 42, 43]), packed, 4)
    assert packed.tolist() == [40, 42, 43, 0]
    bonus = torch.zeros(2, dtype=torch.int32)
    draft_slots.bonus_tokens(torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1]), bonus, 2, 2)
    assert bonus.tolist() == [2, 3]


def test_drafts_are_a_chain_on_this_platform() -> None:
    with pytest.raises(ValueError, match="speculative_eagle_topk is 4; allowed"):
        draft_steps.decode_backend(SimpleNamespace(topk=4))
    assert draft_steps.decode_backend(SimpleNamespace(topk=1, speculative_num_steps=1)) is None


def test_every_seam_of_drafts_has_a_twin() -> None:
    assert {seam.target.rpartition(".")[2] for seam in SPECULATION} == {*draft_hooks._TWINS}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target") / "llama", "llama")


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_draft_model_is_the_same_each_time(tmp_path: Path, llama: Path, kind) -> None:
    one, two = (make_tiny_draft(tmp_path / name, llama, kind) for name in ("one", "two"))
    for file in ("config.json", "model.safetensors"):
        assert (one / file).read_bytes() == (two / file).read_bytes()
    assert json.loads((one / "config.json").read_text())["num_hidden_layers"] == 1


def test_a_model_of_its_own_drafts_says_what_the_target_says(tmp_path: Path, llama: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    own = make_tiny_mtp(tmp_path / "mtp", llama)
    assert json.loads((own / "config.json").read_text())["num_nextn_predict_layers"] == 1
    text = torch.arange(10, 60)[None]
    with torch.no_grad():
        logits = [
            loader.from_pretrained(folder, dtype=torch.float32)(text).logits
            for loader, folder in ((LlamaForCausalLM, llama), (AutoModelForCausalLM, own))
        ]
    torch.testing.assert_close(*logits)


def test_what_cannot_be_drafted_for_is_said(tmp_path: Path, llama: Path) -> None:
    with pytest.raises(ValueError, match="kind must be one of"):
        make_tiny_draft(tmp_path, llama, "medusa")
    other = make_tiny_model(tmp_path / "deepseek", "deepseek", layers=1)
    with pytest.raises(ValueError, match="a llama or a qwen3, got 'deepseek_v2'"):
        make_tiny_draft(tmp_path / "draft", other)
    with pytest.raises(ValueError, match="target must be a llama, got 'deepseek_v2'"):
        make_tiny_mtp(tmp_path / "mtp", other)
    for make, kind in (
        (make_tiny_deltas_mtp, "qwen3_5_text"),
        (make_tiny_latent_mtp, "deepseek_v2"),
    ):
        with pytest.raises(ValueError, match=f"target must be a {kind}, got 'llama'"):
            make(tmp_path / kind, llama)
