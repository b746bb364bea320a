"""What is counted and told of restorations."""

from __future__ import annotations

import math

from tokenflow_sgl.engine.restore.outlook import Outlook
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.engine.telemetry.decision_log import DecisionLog
from tokenflow_sgl.engine.telemetry.prometheus import Recorder


class RestorationRecord:
    """Counts and logs restorations, by the way that they went.

    Args:
        recorder: Is told of all.
        log: Is told of each, with what the other ways would have taken; None: none is kept.
    """

    def __init__(self, recorder: Recorder, log: DecisionLog | None) -> None:
        self._recorder = recorder
        self._log = log

    def alone(self, each: Restoration, outlook: Outlook) -> None:
        """All of it is computed."""
        self._count(each, 0, outlook)

    def failed(self) -> None:
        """A fetch has ended and not brought all that it was to bring."""
        self._recorder.count("restore_fetch_failures_total", 1)

    def joined(self, each: Restoration, fetched: int, ahead: int, outlook: Outlook) -> None:
        """Record a restoration whose head has met its tail.

        Args:
            each: The restoration.
            fetched: Tokens of the tail that were not in the tree before.
            ahead: Those of them that were on the device already.
            outlook: What is known.
        """
        computing, fetching = self._count(each, fetched, outlook)
        self._recorder.count("restore_copied_ahead_tokens_total", ahead)
        single = min(computing, fetching)
        if single < math.inf:
            self._recorder.count("restore_seconds_total", outlook.now - each.began)
            self._recorder.count("restore_single_source_seconds_total", single)

    def by_layers(self, each: Restoration, loaded: int, layers: int, outlook: Outlook) -> None:
        """Record a restoration of which `loaded` of all `layers` came from the storage."""
        tokens = each.whole * loaded // layers
        split = (layers - loaded, layers) if loaded else None
        computing, fetching = self._count(each, tokens, outlook, split)
        single = min(computing, fetching)
        if loaded and single < math.inf:
            self._recorder.count("restore_seconds_total", outlook.now - each.began)
            self._recorder.count("restore_single_source_seconds_total", single)

    def _count(
        self,
        each: Restoration,
        fetched: int,
        outlook: Outlook,
        split: tuple[int, int] | None = None,
    ) -> tuple[float, float]:
        """Returns the seconds of computing and of fetching all; infinite while unknown.

        split: computed layers and all of them, of one that was restored by layers.
        """
        whole = each.whole
        computed = max(whole - fetched, 0)
        way = "fetched" if not computed else "both" if fetched else "computed"
        way = way if split is None else "layers"
        self._recorder.count("restorations_total", 1, way=way)
        self._recorder.count("restored_tokens_total", computed, source="computed")
        self._recorder.count("restored_tokens_total", fetched, source="fetched")
        rate = outlook.measured.rate
        computing = outlook.compute(each.end - whole, whole) or math.inf
        fetching = whole / rate if rate > 0.0 else math.inf
        if self._log is not None:
            told = {"compute": computing, "fetch": fetching, "took": outlook.now - each.began}
            known = {name: round(time, 4) for name, time in told.items() if math.isfinite(time)}
            self._log.restored(
                {
                    "rid": str(each.request.rid),
                    "way": way,
                    "computed": computed,
                    "fetched": fetched,
                    "failed": each.fetched and each.left > 0,
                    "seconds": known,
                    **({} if split is None else {"layers": split}),
                }
            )
        return computing, fetching
