"""Restorations whose lower layers are computed while their upper ones are fetched.

How a request goes: its fetch is made one by layers when the storage has said what it has
(`layer_ways`). It is admitted with all of its prompt, alone in its step, and its prefill is split
(`split_prefill`): as many layers as are expected to be missing are computed for all of its tokens.
Where the fetch is late, more are. When what is not computed has arrived, the rest is computed for
the tokens behind the prefix. So what SGLang has of it until then is a prompt of which a chunk is
in flight, with memory that is the request's own, and its tree never sees KV that lacks layers.
"""

from __future__ import annotations

from tokenflow_sgl.engine.restore.head_chunks import HeadChunks
from tokenflow_sgl.engine.restore.layer_ways import LayerWays
from tokenflow_sgl.engine.restore.open_restorations import OpenRestorations
from tokenflow_sgl.engine.restore.outlook import SHORT
from tokenflow_sgl.engine.restore.prefix_in_tree import RECOMPUTED
from tokenflow_sgl.engine.restore.restored_request import Restoration, Stage
from tokenflow_sgl.engine.restore.split_prefill import SplitPrefill
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.request import Req


class LayeredPrefills:
    """The prefills of requests that are restored by layers, from their admission to their end.

    Args:
        open_restorations: All that are under way.
        chunks: Say what else may be computed.
        ways: Say how far up layers are computed.
        chunk_size: Tokens of a prefill step at most.
    """

    def __init__(
        self,
        open_restorations: OpenRestorations,
        chunks: HeadChunks,
        ways: LayerWays,
        chunk_size: int,
    ) -> None:
        self._open = open_restorations
        self._outlook = open_restorations.outlook
        self._chunks = chunks
        self._ways = ways
        self._chunk_size = chunk_size

    # ---- a request that waits -------------------------------------------------------

    def may_start(self, each: Restoration, head: int) -> bool:
        """Whether SGLang may admit one of which the tree has `head` tokens."""
        if head >= each.end or each.arrived:
            return self._open.join(each, head)
        missing = len(each.request.full_untruncated_fill_ids) - head
        more = self._ways.more(each, head, 0)
        if more == each.layer_fetch.layers or missing > self._chunk_size:
            each.step.alone = True
            return self._chunks.alone(each, head) != 0
        return more > 0 and self._chunks.behind_others(each, head, missing) == missing

    def starts(self, request: Req) -> bool:
        """Whether a request that may start is computed as far up as its layers have not landed."""
        each = self._open.of(request)
        return each is not None and each.stage is Stage.LAYERS and not each.step.alone

    def began(self, request: Req) -> bool:
        """Note that a request is alone in the next step; whether with all of its prompt."""
        each = self._open.of(request)
        assert each is not None, "it was asked for just now"
        whole = int(request.extend_end) == len(request.full_untruncated_fill_ids)
        if whole and each.start <= int(request.prefix_len) < each.end:
            each.goes(Stage.SPLIT)
            return True
        self._open.drop(request, RECOMPUTED)
        return False

    # ---- a request whose layers are computed ----------------------------------------

    def begun(self, batch: ReqBatch | None) -> Restoration | None:
        """The restoration by layers of a batch that SGLang has just made; None: it has none."""
        if batch is None or len(batch.reqs) != 1:
            return None
        each = self._open.of(batch.reqs[0])
        return each if each is not None and each.stage is Stage.SPLIT else None

    def more_layers(self, split: SplitPrefill) -> int | None:
        """Layers that are computed next; None: the prefill is finished."""
        each, fetch = split.restoration, split.restoration.layer_fetch
        open_ = self._open.has(each)
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
        """Seconds of computing so many layers for all tokens of a prompt."""
        tokens = split.gap + split.suffix
        return self._outlook.compute(split.prefix, tokens) * layers / split.layers

    def seconds_left(self, split: SplitPrefill) -> float:
        """Seconds of finishing a prefill."""
        above = max(split.layers - max(split.first, split.computed), 0) / split.layers
        behind = self._outlook.compute(split.prefix + split.gap, split.suffix)
        below = max(split.first - split.computed, 0)
        return self.seconds_of_layers(split, below) + behind * above

    def finishes(self, split: SplitPrefill) -> None:
        """Note that the last layers of a split prefill are launched next."""
        self._open.finish_layers(split.restoration, split.layers - split.first, split.layers)

    def broken_off(self, split: SplitPrefill) -> None:
        """SGLang has taken its memory from it: aborted or retracted."""
        self._open.break_layers_off(split.restoration)
