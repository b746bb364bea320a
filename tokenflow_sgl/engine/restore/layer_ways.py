"""Which prefixes are restored layer by layer, and how far up their layers are computed."""

from __future__ import annotations

from tokenflow_sgl.costs import LatestRate
from tokenflow_sgl.engine.restore.fetched_layer_copies import FetchedLayerCopies
from tokenflow_sgl.engine.restore.layer_fetch import LayerFetch, by_layers_from_here
from tokenflow_sgl.engine.restore.layer_reads import reads_layers
from tokenflow_sgl.engine.restore.open_restorations import OpenRestorations
from tokenflow_sgl.engine.restore.restorable import restorable_by_layers
from tokenflow_sgl.engine.restore.restored_request import Restoration, Stage
from tokenflow_sgl.engine.restore.shared_prefix import leader_of
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.restoration import HeadPlanner, Known

GAIN = 0.001
"""Seconds that the layer-wise way must save, and that are waited rather than to compute a layer: it
takes a launch more, but no step of its own."""


class LayerWays:
    """Which restorations come layer by layer, and how many layers each of them computes.

    Args:
        tree: SGLang's.
        layers: Of the model; 0: its prefills cannot be split.
        planner: Decides for each request alone.
        open_: The restorations under way, and what is known for them.
        chunk_size: Tokens of a prefill step at most.
        rate: Of the link to the storage.
    """

    def __init__(
        self,
        tree: Tree,
        layers: int,
        planner: HeadPlanner,
        open_: OpenRestorations,
        chunk_size: int,
        rate: LatestRate,
    ) -> None:
        self._tree = tree
        self._layers = layers
        self._planner = planner
        self._outlook = open_.outlook
        self._all = open_.all
        self._page = int(tree.page_size)
        self._chunk_size = chunk_size
        self._rate = rate
        self._memory = open_.layer_memory

    def found(self, each: Restoration, tokens: int) -> None:
        """The storage has said what it has, and host memory is there for it: which way it comes.

        Args:
            each: The restoration, of which nothing is fetched yet.
            tokens: As many of its prefix, from the end.
        """
        fetch = self._by_layers(each, tokens)
        each.goes(Stage.FOUND if fetch is None else Stage.LAYERS)
        if fetch is not None:
            by_layers_from_here(each.operation, fetch)
            self._memory.keep(each.operation)

    def _by_layers(self, each: Restoration, tokens: int) -> LayerFetch | None:
        """The fetch of a restoration that comes layer by layer; None: its tail comes first."""
        controller, request = self._tree.cache_controller, each.request
        missing = len(request.full_untruncated_fill_ids) - each.start
        suffix = missing - tokens
        possible = (
            self._layers > 1
            and tokens == each.end - each.start
            and suffix > 0
            and missing <= self._chunk_size
            and restorable_by_layers(request)
            and reads_layers(controller)
        )
        copies = FetchedLayerCopies(self._tree, each.operation, self._layers)
        if not possible or copies.over or leader_of(each, self._all, self._page)[0] is not None:
            return None
        each.link.ahead = sum(
            other.left for other in self._all if other.allocated and not other.fetched
        )
        if not self._planner.by_layers(
            each.start, tokens, suffix, layers=self._layers, gain=GAIN, **self._known(each)
        ):
            return None
        return LayerFetch(
            self._layers,
            tokens,
            self._page,
            self._rate,
            copies,
            self._outlook.measured.rate,
        )

    def more(self, each: Restoration, prefix: int, computed: int) -> int:
        """Layers that are computed next.

        Args:
            each: One that is fetched layer by layer.
            prefix: Tokens of it on the device or the host.
            computed: Layers that are computed already, behind these.

        Returns:
            0: none yet. As many as neither computed nor landed: no more is waited for.
        """
        fetch = each.layer_fetch
        left = max(self._layers - computed - fetch.landed, 0)
        if each.fetched or fetch.by_layers.over:
            return left
        suffix = len(each.request.full_untruncated_fill_ids) - each.end
        said = self._planner.more_layers(
            prefix,
            each.end - prefix,
            suffix,
            layers=self._layers,
            computed=computed,
            landed=fetch.landed,
            wait=GAIN,
            **self._known(each),
        )
        return min(said, left)

    def _known(self, each: Restoration) -> Known:
        return {
            "compute": self._outlook.compute,
            "fetch": self._outlook.fetch(each),
            "page": self._page,
            "lead": self._outlook.lead,
        }
