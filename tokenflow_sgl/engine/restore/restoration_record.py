"""What is counted of restorations."""

from __future__ import annotations

import math

from tokenflow_sgl.engine.restore.outlook import Outlook
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.engine.telemetry.prometheus import Recorder


class RestorationRecord:
    """By the way they went.

    Args:
        recorder: Is told.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def alone(self, each: Restoration) -> None:
        """All of it is computed."""
        self._count("computed", each.end - each.start, 0)

    def failed(self) -> None:
        """A fetch has ended and not brought all that it was to bring."""
        self._recorder.count("restore_fetch_failures_total", 1)

    def joined(self, each: Restoration, fetched: int, ahead: int, outlook: Outlook) -> None:
        """Its head has met its tail.

        Args:
            each: The restoration.
            fetched: Tokens of the tail that were not in the tree before.
            ahead: Those of them that were on the device already.
            outlook: What is known.
        """
        whole = each.end - each.start
        computed = max(whole - fetched, 0)
        self._count(
            "fetched" if not computed else "both" if fetched else "computed", computed, fetched
        )
        self._recorder.count("restore_copied_ahead_tokens_total", ahead)
        rate = outlook.measured.rate
        fetching = whole / rate if rate > 0.0 else math.inf
        single = min(outlook.compute(each.start, whole) or math.inf, fetching)
        if single < math.inf:
            self._recorder.count("restore_seconds_total", outlook.now - each.began)
            self._recorder.count("restore_single_source_seconds_total", single)

    def _count(self, way: str, computed: int, fetched: int) -> None:
        self._recorder.count("restorations_total", 1, way=way)
        self._recorder.count("restored_tokens_total", computed, source="computed")
        self._recorder.count("restored_tokens_total", fetched, source="fetched")
