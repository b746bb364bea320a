"""Makes a fetch from the tail an ordinary one of SGLang's.

SGLang owns what a fetch has brought until its tree has it. Here only the order of the pages is
turned round, and the fetch is said to have begun where the computed head ends; everything else
(the tree's entry, memory, accounting of storage hits) is SGLang's own end of a fetch.
"""

from __future__ import annotations

import copy

from tokenflow_sgl.engine.restore.prefix_in_tree import RECOMPUTED
from tokenflow_sgl.engine.restore.tail_fetch import unmark
from tokenflow_sgl.engine.sglang.controller import StorageFetch
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree


def join_fetch(
    tree: Tree, request: Req, operation: StorageFetch, head: int, end: int, arrived: int
) -> int:
    """Enter the tail behind a request's head into the tree's host memory.

    Args:
        tree: SGLang's.
        request: Was matched with the tree just now.
        operation: Its fetch from the tail.
        head: Tokens of it that the tree has.
        end: Behind the last token of the tail.
        arrived: Tokens of the tail that are on the host, at least those behind the head.

    Returns:
        Tokens that the tree did not have.
    """
    handle, page, wanted = request.cache_request_handle, int(tree.page_size), end - head
    controller, info = tree.cache_controller, tree.ongoing_prefetch[handle]
    controller.terminate_prefetch(operation)  # what is still under way SGLang gives back itself
    controller.append_host_mem_release(info.host_indices[wanted:arrived])
    begin = head - int(operation.storage_start)
    slots = info.host_indices[:wanted].reshape(-1, page).flip(0).reshape(-1)

    joined = copy.copy(operation)
    unmark(joined)
    joined.hash_value = operation.hash_value[: wanted // page][::-1]
    joined.host_indices, joined.completed_tokens = slots, wanted
    joined.storage_start, joined.storage_hit_count = head, wanted

    # The lock on the node at which the fetch began goes over to the one at which the head ends.
    anchor = request.best_match_node
    lock = tree.inc_host_lock_ref(anchor).to_dec_params()
    tree.dec_host_lock_ref(info.anchor_node_id, info.anchor_lock_params)
    controller.prefetch_tokens_occupied -= len(info.prefetch_key) - wanted
    tree._resolve_storage_prefetch_tokens(handle, len(info.host_indices) - wanted, RECOMPUTED)
    tree.ongoing_prefetch[handle] = info._replace(
        anchor_node_id=anchor,
        anchor_lock_params=lock,
        prefetch_key=info.prefetch_key[begin : begin + wanted],
        host_indices=slots,
        operation=joined,
    )
    tree._handle_prefetch_result(joined)
    # None where the host had no memory for the head: SGLang's tree takes no tail behind it then.
    entered = int(tree.prefetch_loaded_tokens_by_reqid.get(handle, 0))
    if request.already_computed:
        # SGLang divided its hits by where they came from when the head was begun.
        request.cached_tokens_storage += entered
    return entered
