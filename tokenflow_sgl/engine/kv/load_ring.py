"""Prefetch: loads paused streams' KV from the host beside the steps, before the streams resume.

The only file that touches SGLang's ring of load counters. SGLang loads a request's KV with the
prefill step that needs it, and every stream of that step waits for the link. Here the load is
started by itself, on the same CUDA stream and with the same bookkeeping, and no step waits for it.
Until it has landed no step may read what it loads:

- it is not started while a stream runs that shares the tokens: publishing its own copy would make
  that stream read the one that is being loaded;
- a prefill of a stream that shares the tokens waits for it, layer by layer, as for its own load.

A chunk of a stream is a node of the prefix tree, which is split where the chunk ends. SGLang locks
it until it has landed; then the lock that is held here keeps it on the device, with all before it,
while the rest of the stream waits for memory.

One copy at a time: SGLang has counters for three, and a step in flight and the next one may need
one each.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams
from sglang.srt.mem_cache.common import match_kv_cache

from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.lifecycle import Missing


class Loader:
    """The copy that is under way, if any, and the streams that are loaded in part.

    Attributes:
        request: Whose KV is being copied.
    """

    def __init__(self, tree_cache: Tree) -> None:
        self._tree_cache = tree_cache
        self.request: Any | None = None
        self._node: Any = None
        self._resident = 0
        self._counter = -1
        self._kept: dict[Any, Any] = {}  # locks on what was loaded of a request

    def __contains__(self, request: Req) -> bool:
        """Whether this request is being copied, or loaded in part."""
        return request is self.request or request in self._kept

    @property
    def busy(self) -> bool:
        """Whether a request is being copied, or loaded in part."""
        return self.request is not None or bool(self._kept)

    @property
    def taken(self) -> bool:
        """Whether no copy can be started now: ours is under way, or SGLang has two of its own."""
        acks = self._tree_cache.cache_controller.ack_load_queue
        # Of a restored tail that was copied already one event tells the end; it takes no counter.
        queued = sum(ack.start_event is not ack.finish_event for ack in acks)
        return self.request is not None or queued > 1

    def missing(self, request: Req) -> Missing:
        """What is still to be loaded of a paused request."""
        tree = self._tree_cache
        match = match_kv_cache(request, tree)
        tokens = int(match.host_hit_length)
        if not tokens:
            return Missing()
        evictable = int(tree.evictable_size())
        # What of it is on the device counts as free now, and will not when it is kept there.
        lock = tree.lock(match.last_device_node)
        kept = evictable - int(tree.evictable_size())
        tree.unlock(lock)
        return Missing(tokens, kept)

    def load(self, request: Req, running: list[Req], tokens: int) -> int:
        """Start to copy the next `tokens` of a paused request by itself.

        Args:
            request: Paused, or loaded in part.
            running: Requests that compute now, or have a result in flight.
            tokens: Whole pages, or all that is missing; the device has memory for them.

        Returns:
            The tokens that are copied; 0: they come with the step that resumes the request.
        """
        tree = self._tree_cache
        if tree.supports_mamba():
            return 0  # a state is loaded to a place of the request's own, which it gets as it runs
        match = match_kv_cache(request, tree)
        missing, resident = int(match.host_hit_length), int(match.device_prefix_len)
        if any(shares(other, request, resident) for other in running):
            return 0
        if tokens < missing:
            match = match_kv_cache(request, tree, max_prefix_len=resident + tokens)
        loaded, node = tree.init_load_back(
            InitLoadBackParams(
                best_match_node=match.best_match_node,
                host_hit_length=int(match.host_hit_length),
                req=request,
            )
        )
        if not loaded:
            return 0
        self.request, self._node, self._resident = request, node, resident
        self._counter = tree.ready_to_load_host_cache()
        before = self._kept.pop(request, None)
        if loaded < missing:
            self._kept[request] = tree.lock(node)
        tree.unlock(before)
        return int(loaded)

    def give_up(self, request: Req) -> None:
        """What was loaded of a request may be evicted again, once it has landed."""
        if request in self._kept:
            self._tree_cache.unlock(self._kept.pop(request))

    def landed(self) -> Any | None:
        """The request whose copy has landed since the last call, on all ranks."""
        if self.request is None or self._node in self._tree_cache.ongoing_load_back:
            return None
        request, self.request = self.request, None
        return request

    def settle(self) -> Any | None:
        """Wait for all copies and acknowledge them; returns whose load it was, if there was one.

        A paused engine acknowledges nothing by itself, and until then its caches cannot be flushed.
        Every rank waits for all that it has begun, so all ranks acknowledge the same copies.
        """
        tree = self._tree_cache
        if tree.cache_controller is not None:
            tree.writing_check(write_back=True)  # waits for every write, whatever the write policy
            tree.loading_check(finish_count=len(tree.cache_controller.ack_load_queue))
        request, self.request = self.request, None
        return request

    def guard(self, batch: ReqBatch) -> None:
        """A new prefill batch waits for the load if it could read what is being loaded."""
        if self.request is None or batch.hicache_consumer_index >= 0:
            return  # its own load comes behind ours on the link
        if any(shares(other, self.request, self._resident) for other in batch.reqs):
            batch.hicache_consumer_index = self._counter


def shares(one: Any, other: Any, resident: int) -> bool:
    """Whether two requests have the same tokens, or may have, up to beyond `resident`.

    Many streams begin alike and go on differently, so the last of the tokens is looked at first.
    """
    common = min(length(one), length(other), resident + 1)
    if not common or token(one, common - 1) != token(other, common - 1):
        return not common
    return bool(ids(one, common) == ids(other, common))


def length(request: Req) -> int:
    """Tokens of a request and its output."""
    return len(request.origin_input_ids) + len(request.output_ids)


def token(request: Req, index: int) -> int:
    """One of the tokens of a request and its output."""
    prompt = request.origin_input_ids
    return int(prompt[index] if index < len(prompt) else request.output_ids[index - len(prompt)])


def ids(request: Req, count: int) -> Any:
    """The first tokens of a request and its output."""
    prompt = request.origin_input_ids[:count]
    return prompt + request.output_ids[: count - len(prompt)]
