"""Restorations whose lower layers are computed while their upper ones are fetched.

How a request goes: its fetch is made one by layers when the storage has said what it has
(`layer_ways`). It is admitted with all of its prompt, alone in its step, and its prefill is split
(`split_prefill`): as many layers as are expected to be missing are computed for all of its tokens.
Where the fetch is late, more are. When what is not computed has arrived, the rest is computed for
the tokens behind the prefix. So what SGLang has of it until then is a prompt of which a chunk is
in flight, with memory that is the request's own, and its tree never sees KV that lacks layers.
"""

from __future__ import annotations

from typing import Any

from tokenflow_sgl.costs import LatestRate
from tokenflow_sgl.engine.restore.head_chunks import HeadChunks
from tokenflow_sgl.engine.restore.layer_ways import LayerWays
from tokenflow_sgl.engine.restore.open_restorations import OpenRestorations
from tokenflow_sgl.engine.restore.outlook import SHORT
from tokenflow_sgl.engine.restore.prefix_in_tree import RECOMPUTED, tokens_in_tree
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.engine.restore.split_prefill import SplitPrefill
from tokenflow_sgl.restoration import HeadPlanner


class LayeredRestorations(OpenRestorations):
    """Those of all restorations.

    Args:
        tree_cache: SGLang's prefix tree.
        chunk_size: Tokens of a prefill step at most.
        planner: Decides how much is computed.
        record: Is told what was restored how.
        layers: Of the model, if its prefills can be split; else 0.

    Attributes:
        rate: Of the link to the storage.
    """

    def __init__(
        self,
        tree_cache: Any,
        chunk_size: int,
        planner: HeadPlanner,
        record: RestorationRecord,
        layers: int,
    ) -> None:
        super().__init__(tree_cache, chunk_size, record)
        self.rate = LatestRate()
        self._chunks = HeadChunks(planner, self._outlook, self._page, chunk_size)
        self._ways = LayerWays(
            tree_cache,
            layers,
            planner,
            self._outlook,
            self._of.values(),
            chunk_size,
            self.rate,
            self._layer_memory,
        )

    def _may_start_by_layers(self, each: Restoration) -> bool:
        head = tokens_in_tree(self._tree, each.request)
        if head >= each.end or each.arrived:
            return self._join(each, head)
        missing = len(each.request.full_untruncated_fill_ids) - head
        more = self._ways.more(each, head, 0)
        if more == each.layer_fetch.layers or missing > self._chunk_size:
            each.alone = True
            return self._alone(each, head) != 0
        return more > 0 and self._chunks.behind_others(each, head, missing) == missing

    def by_layers(self, request: Any) -> bool:
        """Whether a request that may start is computed as far up as its layers have not landed."""
        each = self._of.get(request.cache_request_handle)
        return each is not None and each.layered and not (each.alone or each.probe)

    def began_by_layers(self, request: Any) -> bool:
        """It is in the next step, by itself: whether with all of its prompt, as it has to be."""
        each = self._of[request.cache_request_handle]
        whole = int(request.extend_end) == len(request.full_untruncated_fill_ids)
        each.by_layers = whole and each.start <= int(request.prefix_len) < each.end
        if not each.by_layers:
            self.drop(request, RECOMPUTED)
        return each.by_layers

    def split_begun(self, batch: Any) -> Restoration | None:
        """The restoration by layers of a batch that SGLang has just made."""
        if batch is None or len(batch.reqs) != 1:
            return None
        each = self._of.get(batch.reqs[0].cache_request_handle)
        return each if each is not None and each.by_layers else None

    def more_layers(self, split: SplitPrefill) -> int | None:
        """Layers that one whose layers are computed computes next; None: it is finished."""
        each, fetch = split.restoration, split.restoration.layer_fetch
        open_ = self._of.get(split.request.cache_request_handle) is each
        landed = fetch.landed if open_ and not fetch.by_layers.over else 0
        left = split.layers - split.computed - landed
        split.first = max(split.layers - landed, split.computed)
        if left <= 0 or not open_:
            return None
        if split.computed and self._outlook.lead > SHORT:
            return 0  # more will be known when it has to be decided
        more = self._ways.more(each, split.prefix, split.computed)
        return None if more >= left else more

    def seconds_of_layers(self, split: SplitPrefill, layers: int) -> float:
        """Of computing so many layers for all tokens of a prompt."""
        tokens = split.gap + split.suffix
        return self._outlook.compute(split.prefix, tokens) * layers / split.layers

    def seconds_left(self, split: SplitPrefill) -> float:
        """Of finishing it."""
        above = max(split.layers - max(split.first, split.computed), 0) / split.layers
        behind = self._outlook.compute(split.prefix + split.gap, split.suffix)
        below = max(split.first - split.computed, 0)
        return self.seconds_of_layers(split, below) + behind * above

    def finishes(self, split: SplitPrefill) -> None:
        """Its last layers are launched next."""
        each = split.restoration
        if self._of.get(split.request.cache_request_handle) is not each:
            return  # it was dropped, and all of it is computed
        loaded = split.layers - split.first
        if loaded:
            each.layer_fetch.by_layers.finish(each.landed)
        self._record.by_layers(each, loaded, split.layers, self._outlook)
        self.drop(split.request, RECOMPUTED)

    def broken_off(self, split: SplitPrefill) -> None:
        """SGLang has taken its memory from it: aborted or retracted."""
        split.restoration.by_layers = False
        if self._of.get(split.request.cache_request_handle) is split.restoration:
            self.drop(split.request)

    def _alone(self, each: Restoration, head: int) -> int | None:
        """Tokens that one that is computed alone takes next; None: as SGLang likes."""
        left = len(each.request.full_untruncated_fill_ids) - head
        chunk = self._chunks.behind_others(each, head, left)
        each.chunk = chunk if chunk < left else 0
        return chunk if chunk < left else None
