"""Trees of drafts: twins of the kernels that build, describe and verify them.

A request has n nodes: its last token, the root, and its drafts. ``next_token`` names the first
child of a node and ``next_sibling`` the next child of its parent, -1 where there is none.
"""

import torch


def build_trees(
    parent_list: torch.Tensor,
    top_scores_index: torch.Tensor,
    seq_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    spec_steps: int,
    num_verify_tokens: int,
    tree_mask_mode: int,
) -> None:
    """Describe the trees that EAGLE has drafted; all tensors from the mask on are filled.

    A step of drafts gives each of the topk best branches topk candidates. Candidates are numbered
    over all steps, so ``number // topk`` says from which branch one comes. ``parent_list``
    [requests, branches + 1] has the number of the candidate that each branch goes on from, behind a
    -1 for the root; ``top_scores_index`` [requests, drafts] the numbers of the drafts that are
    verified, ascending.
    """
    requests, nodes = len(seq_lens), num_verify_tokens
    mask = torch.zeros(requests, nodes, nodes, dtype=torch.bool)
    retrieve_next_token.fill_(-1)
    retrieve_next_sibling.fill_(-1)
    chosen = zip(parent_list.tolist(), top_scores_index.tolist(), strict=True)
    for request, (parents, numbers) in enumerate(chosen):
        node_of = {number: node for node, number in enumerate(numbers, start=1)}
        mask[request, 0, 0] = True
        last_child: dict[int, int] = {}
        for node, number in enumerate(numbers, start=1):
            branch = number // topk
            parent = node_of.get(parents[branch]) if branch else 0
            mask[request, node] = mask[request, parent or 0]
            mask[request, node, node] = True
            if parent is None:
                continue  # it scores as much as its parent, which was left out: none comes here
            if parent in last_child:
                retrieve_next_sibling[request, last_child[parent]] = node
            else:
                retrieve_next_token[request, parent] = node
            last_child[parent] = node
    tree_mask.view(requests, nodes, nodes).copy_(mask)
    positions.view(requests, nodes).copy_(seq_lens.view(-1, 1) + mask.sum(-1) - 1)
    retrieve_index.copy_(torch.arange(requests * nodes).view(requests, nodes))


def describe_trees(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Fill in what a mask says of trees: ``mask[i, j]``, node j is node i or before it."""
    from sglang.srt.speculative.ngram_worker import _derive_tree_links

    nodes = draft_token_num
    mask = tree_mask.view(batch_size, nodes, nodes)
    children, siblings = _derive_tree_links(mask.numpy(), batch_size, nodes)
    retrieve_next_token.copy_(children)
    retrieve_next_sibling.copy_(siblings)
    retrieve_index.copy_(torch.arange(batch_size * nodes).view(batch_size, nodes))
    node = torch.arange(nodes)
    depth = (mask & (node < node[:, None])).sum(-1)
    positions.view(batch_size, nodes).copy_(verified_seq_len.view(-1, 1) + depth)


def verify_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    topk: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Follow each tree as long as the model's own next token is among the drafts.

    Args:
        predicts: Filled: the model's token behind each accepted node, [requests * nodes].
        accept_index: Filled: the accepted nodes in order, [requests, deepest + 1].
        accept_token_num: Filled: accepted drafts, [requests].
        candidates: Tokens of the nodes, [requests, nodes].
        retrieve_index: Number of each node among those of all requests.
        retrieve_next_token: First children.
        retrieve_next_sibling: Next siblings.
        target_predict: The model's token behind each node, [requests, nodes].
        topk: Children of a node at most.
    """
    wanted = target_predict.flatten().tolist()
    trees = zip(
        candidates.tolist(),
        retrieve_index.tolist(),
        retrieve_next_token.tolist(),
        retrieve_next_sibling.tolist(),
        strict=True,
    )
    for request, (tokens, number, child, sibling) in enumerate(trees):
        node, path = 0, [number[0]]
        while len(path) < accept_index.shape[1]:
            node = child[node]
            while node != -1 and tokens[node] != wanted[path[-1]]:
                node = sibling[node]
            if node == -1:
                break
            path.append(number[node])
        accept_index[request, : len(path)] = torch.tensor(path, dtype=accept_index.dtype)
        accept_token_num[request] = len(path) - 1
        for each in path:
            predicts[each] = wanted[each]
    return predicts, accept_index, accept_token_num
