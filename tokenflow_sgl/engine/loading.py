"""Brings a paused stream's KV back from the host beside the steps, before the stream runs.

SGLang loads a request's KV with the prefill step that needs it: everybody in that step waits for
the link. Here the load is started by itself, on the same stream and with the same bookkeeping, and
no step waits for it. Until it has landed nobody may read what it loads:

- it is not started while a stream runs that shares the tokens: publishing its own copy would make
  that stream read the one that is being loaded;
- a prefill of whoever shares the tokens waits for it, layer by layer, as for a load of its own.

One load at a time: SGLang has counters for three, and a step in flight and the next one may need
one each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams
from sglang.srt.mem_cache.common import match_kv_cache


@dataclass(frozen=True, slots=True)
class Started:
    """What came of a wish to load.

    tokens: Of the load that was started; 0: none was.
    direct: Requests that need none, or that can only be loaded with a step of their own: their KV
        is on the device, nowhere, or somebody shares it. They can be taken up at once.
    """

    tokens: int
    direct: tuple[Any, ...] = ()


class Loader:
    """The load that is under way, if any.

    Attributes:
        request: Whose KV it brings back.
    """

    def __init__(self, tree_cache: Any) -> None:
        self._tree_cache = tree_cache
        self.request: Any | None = None
        self._node: Any = None
        self._resident = 0
        self._counter = -1

    def start(self, wanted: Iterable[Any], running: list[Any], room: int) -> Started:
        """Start to load the first of `wanted` that can be loaded by itself.

        Args:
            wanted: Paused requests, most urgent first.
            running: Requests that compute now, or have a result in flight.
            room: Tokens that the device has for it.
        """
        tree = self._tree_cache
        if self.request is not None or len(tree.cache_controller.ack_load_queue) > 1:
            return Started(0)
        direct: list[Any] = []
        for request in wanted:
            match = match_kv_cache(request, tree)
            resident, missing = int(match.device_prefix_len), int(match.host_hit_length)
            if missing > room:
                break  # the most urgent one waits for its room
            if not missing or any(shares(other, request, resident) for other in running):
                direct.append(request)
                continue
            loaded, node = tree.init_load_back(
                InitLoadBackParams(
                    best_match_node=match.best_match_node,
                    host_hit_length=missing,
                    mem_quota=room,
                    req=request,
                )
            )
            if loaded:
                self.request, self._node, self._resident = request, node, resident
                self._counter = tree.ready_to_load_host_cache()
                return Started(int(loaded), tuple(direct))
            direct.append(request)
        return Started(0, tuple(direct))

    def ended(self) -> Any | None:
        """The request whose load has landed since the last call, on all ranks."""
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

    def guard(self, batch: Any) -> None:
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


def length(request: Any) -> int:
    """Tokens of a request and its output."""
    return len(request.origin_input_ids) + len(request.output_ids)


def token(request: Any, index: int) -> int:
    """One of the tokens of a request and its output."""
    prompt = request.origin_input_ids
    return int(prompt[index] if index < len(prompt) else request.output_ids[index - len(prompt)])


def ids(request: Any, count: int) -> Any:
    """The first tokens of a request and its output."""
    prompt = request.origin_input_ids[:count]
    return prompt + request.output_ids[: count - len(prompt)]
