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


def described(
    parents: torch.Tensor, numbers: torch.Tensor, lengths: list[int], topk: int
) -> dict[str, torch.Tensor]:
    """What `build_trees` says of drafts."""
    requests, nodes = len(lengths), numbers.shape[1] + 1
    said = {
        name: torch.full((requests, nodes), -5)
        for name in ("positions", "index", "child", "sibling")
    }
    mask = torch.zeros(requests * nodes * nodes, dtype=torch.bool)
    flat = said | {"positions": said["positions"].view(-1)}
    steps = (parents.shape[1] - 1) // topk + 1
    draft_trees.build_trees(
        parents, numbers, torch.tensor(lengths), mask, *flat.values(), topk, steps, nodes, 1
    )
    return said | {"mask": mask.view(requests, nodes, nodes)}


def test_a_chain_is_described() -> None:
    parents, numbers = torch.arange(-1, 2).expand(2, -1), torch.arange(3).expand(2, -1)
    said = described(parents, numbers, [5, 9], topk=1)
    assert torch.equal(said["mask"], masks([[-1, 0, 1, 2]] * 2))
    assert said["positions"].tolist() == [[5, 6, 7, 8], [9, 10, 11, 12]]
    assert said["index"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert said["child"].tolist() == [[1, 2, 3, -1]] * 2
    assert said["sibling"].tolist() == [[-1] * 4] * 2


def test_a_tree_of_eagle_is_described() -> None:
    """Two branches of two candidates per step; the second step's best both come from the first."""
    # Candidates 0 and 1 are the root's; 2 and 3 go on from 0, 4 and 5 from 1; 6 and 7 from 2, 8
    # and 9 from 3.
    parents = torch.tensor([[-1, 0, 1, 2, 3]])
    said = described(parents, torch.tensor([[0, 1, 2, 3, 8]]), [10], topk=2)
    tree = [-1, 0, 0, 1, 1, 4]
    assert torch.equal(said["mask"], masks([tree]))
    assert said["positions"].tolist() == [[10, 11, 11, 12, 12, 13]]
    assert said["child"].tolist() == [[1, 3, -1, -1, 5, -1]]
    assert said["sibling"].tolist() == [[-1, 2, -1, 4, -1, -1]]


def test_drafts_that_sglang_selects_make_trees() -> None:
    """Of random scores: each node behind its parent, one deeper, and found from the root."""
    from sglang.srt.speculative.eagle_utils import organize_draft_results

    torch.manual_seed(0)
    topk, steps, drafts, requests = 4, 4, 12, 5
    scores, tokens, parents, best = [], [], [], torch.rand(requests, topk)
    scores.append(best[:, None])
    tokens.append(torch.zeros(requests, topk, dtype=torch.int64))
    parents.append(torch.arange(-1, topk).expand(requests, -1))
    for step in range(1, steps):  # as in SGLang's select_top_k_tokens
        expanded = best[:, :, None] * torch.rand(requests, topk, topk)
        best, picked = expanded.flatten(1).topk(topk, dim=-1)
        scores.append(expanded)
        tokens.append(torch.zeros(requests, topk * topk, dtype=torch.int64))
        parents.append(picked + topk * topk * (step - 1) + topk)
    parent_list, numbers, _ = organize_draft_results(scores, tokens, parents, drafts)
    said = described(parent_list, numbers, [10] * requests, topk)
    for request in range(requests):
        child, sibling = said["child"][request].tolist(), said["sibling"][request].tolist()
        found, at = {0: [0]}, [0]
        while at:
            parent = at.pop()
            node = child[parent]
            while node != -1:
                found[node] = [*found[parent], node]
                at.append(node)
                node = sibling[node]
        assert len(found) == drafts
        for node, path in found.items():
            assert path == sorted(path)
            assert said["mask"][request, node].nonzero().flatten().tolist() == path
            assert said["positions"][request, node] == 10 + len(path) - 1


def test_a_draft_without_its_parent_is_never_reached() -> None:
    """Where both score the same, SGLang may choose the child alone."""
    parents = torch.tensor([[-1, 0, 1]])
    said = described(parents, torch.tensor([[0, 4, 5]]), [10], topk=2)
    assert said["child"].tolist() == [[1, -1, -1, -1]]
    assert said["sibling"].tolist() == [[-1] * 4]


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
    spec.custom_mask = trees.flatten()
    *found, padding = draft_masks(spec, [*lengths, 1])
    assert all(map(torch.equal, found, trees))
    assert padding is None
    spec.tree_topk = 1
    assert draft_masks(spec, lengths) is None
    assert draft_masks(SimpleNamespace(draft_token_num=6, custom_mask=None), lengths) is None


@pytest.mark.parametrize("window", [None, 7, 1])
def test_a_draft_sees_its_own_branch(window) -> None:
    """As if the nodes before it were all there is behind the context, with a window, too."""
    torch.manual_seed(0)
    context, nodes, heads, kv_heads, dim = 20, 6, 4, 2, 8
    query = torch.randn(nodes, heads, dim)
    key, value = torch.randn(2, kv_heads, context + nodes, dim).double()
    (tree, _) = masks(PARENTS)
    together = attention._attend(query, key, value, None, window, tree).float()
    for node in range(nodes):
        seen = [*range(context), *(context + at for at in range(nodes) if tree[node, at])]
        alone = attention._attend(
            query[node : node + 1], key[:, seen], value[:, seen], None, window
        )
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


def test_each_branch_has_its_own_slots() -> None:
    table = torch.arange(200, dtype=torch.int32).view(2, 100)
    step = object.__new__(draft_steps.DraftStepAttention)
    step._more, step._steps, step._branches = 2, 3, 2
    rows = step._branch_slots(table, torch.tensor([4, 6]))
    assert rows[0, :6].tolist() == [0, 1, 2, 3, 4, 5]
    assert rows[1, :6].tolist() == [0, 1, 2, 3, 7, 8]
    assert rows[2, :8].tolist() == [*range(100, 106), 106, 107]
    assert rows[3, :8].tolist() == [*range(100, 106), 109, 110]
    # As SGLang hands them out: of each branch one slot per step.
    out = torch.zeros(12, dtype=torch.int64)
    draft_slots.draft_cache_locs(torch.tensor([0, 1]), table, torch.tensor([4, 6]), out, 2, 3)
    assert out.view(2, 2, 3)[0].tolist() == [[4, 5, 6], [7, 8, 9]]
    assert out.view(2, 2, 3)[1].tolist() == [[106, 107, 108], [109, 110, 111]]


def test_one_step_of_drafts_needs_no_attention() -> None:
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


def test_a_draft_model_has_the_window_of_its_target_or_none(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "windows", "qwen3-window")
    for kind, pattern in (("eagle3", None), ("eagle-window", [1])):
        made = make_tiny_draft(tmp_path / kind, target, kind)
        config = json.loads((made / "config.json").read_text())
        assert config.get("hybrid_layer_pattern") == pattern
        assert config.get("is_hybrid_swa", False) is (pattern is not None)


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
    with pytest.raises(ValueError, match="must have a sliding window for kind 'eagle-window'"):
        make_tiny_draft(tmp_path, llama, "eagle-window")
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
