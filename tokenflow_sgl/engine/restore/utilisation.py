"""How busy the device and the link to the storage are while prefixes are restored."""

from __future__ import annotations

from tokenflow_sgl.engine.telemetry.prometheus import Recorder


class Utilisation:
    """Busy seconds of device and link while at least one restoration is under way.

    Args:
        recorder: Is told of the seconds, of those that were busy by what was.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._since: float | None = None
        self._linked = 0.0

    def look(self, now: float, step_end: float, link_seconds: float) -> None:
        """A pass begins, and some are under way.

        Args:
            now: Seconds.
            step_end: When the step that was launched last has ended, as it was expected then: a
                step that takes longer counts for what was expected.
            link_seconds: Time of all batches that the link has brought so far, as this rank has
                measured it: that of a batch counts when it is there.
        """
        if self._since is not None and now > self._since:
            computed = min(max(step_end - self._since, 0.0), now - self._since)
            self._recorder.count("restoring_seconds_total", now - self._since)
            self._busy("device", computed)
            self._busy("link", link_seconds - self._linked)
        self._since, self._linked = now, link_seconds

    def rest(self) -> None:
        """Stop counting: no restoration is under way."""
        self._since = None

    def _busy(self, resource: str, seconds: float) -> None:
        self._recorder.count("restoring_busy_seconds_total", seconds, resource=resource)
