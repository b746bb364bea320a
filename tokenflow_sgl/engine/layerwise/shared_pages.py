"""What a stream takes no memory for: pages that another stream has, which runs."""

from __future__ import annotations

from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree


def shared_pages(pool: LayerwisePool, tree_cache: Tree, req: Req) -> int:
    """How many of the pages that a request reads, or will read first, a running stream has.

    Args:
        pool: Knows whose each page is.
        tree_cache: SGLang's, in which a request that waits has just been looked for.
        req: SGLang's.
    """
    owners, resting = pool.executor.owners, pool.executor.plans.paused
    if req.kv.holds_kv:
        row = int(req.kv.req_pool_idx)
        return owners.shared(owners.read_by(row), resting, row)
    if not req.prefix_len:
        return 0
    places = tree_cache.prefix_device_indices(req).cpu().numpy()
    return owners.shared(places[:: pool.page_size] // pool.page_size, resting)
