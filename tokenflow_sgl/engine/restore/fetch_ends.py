"""Fetches from the tail that SGLang's threads have not ended yet, those that were dropped, too.

SGLang forgets a fetch that is dropped at once. But its threads go on to the end of the batch, and
owe an acknowledgement of each one behind it, on which the ranks agree one by one. A flush ends the
threads: where one rank's has gone that another's waits for, the server dies. So the caches are not
idle before SGLang has taken the last acknowledgement, which it does on all ranks at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tokenflow_sgl.engine.sglang.controller import Controller
from tokenflow_sgl.engine.sglang.tree import Tree

_ATTRIBUTE = "tokenflow_fetches"


def fetches_of(controller: Controller) -> dict[Any, int]:
    """SGLang's operations that its threads have not ended, in the order in which they began.

    Of each the number of batches that they have reported. The same on all ranks.
    """
    found: dict[Any, int] | None = getattr(controller, _ATTRIBUTE, None)
    if found is None:
        found = {}
        setattr(controller, _ATTRIBUTE, found)
    return found


def drained(
    original: Callable[..., Any], tree: Tree, *args: Any, n_ack_prefetch: int, **kwargs: Any
) -> Any:
    """Around the tree's `_drain_storage_control_queues_impl`: notes which fetches have ended."""
    controller = tree.cache_controller
    queue = controller.ack_prefetch_queue
    with queue.mutex:  # SGLang's thread may add to it
        taken = list(itertools.islice(queue.queue, n_ack_prefetch))
    said = original(tree, *args, n_ack_prefetch=n_ack_prefetch, **kwargs)
    fetches = fetches_of(controller)
    for ack in taken:
        if ack.completed_req:
            fetches.pop(ack.operation, None)
        elif ack.operation in fetches:
            fetches[ack.operation] += 1
    return said
