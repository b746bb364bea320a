"""Headroom in /v1/loads.

Schedulers write what /v1/loads answers into shared memory, as MessagePack with the fields' names.
The HTTP server's process decodes it, and leaves out what it does not know. So headroom is one more
field of the loads, which that process has to know, too.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sglang.srt.managers import load_snapshot

from tokenflow_sgl.engine.sglang.overriding import checked, overrides


@checked
class LoadWithHeadroom(load_snapshot.LoadSnapshot):  # type: ignore[misc]
    """SGLang's load, how much more can be taken, and how long newcomers would wait.

    Attributes:
        tokenflow_headroom_tokens: As the gauge tokenflow:headroom_tokens; None: it is not known.
        tokenflow_expected_wait_s: As the gauge tokenflow:expected_wait_seconds; likewise.
        tokenflow_outlook: As `HeadroomWatch.published`, for processes that serve HTTP; likewise.
        tokenflow_full: Keys, or hashes of them, of the tenants that have as many streams as they
            may; None: tenants are not told apart.
    """

    tokenflow_headroom_tokens: int | None = None
    tokenflow_expected_wait_s: float | None = None
    tokenflow_outlook: list[list[float]] | None = None
    tokenflow_full: list[str] | None = None

    @overrides("headroom in /v1/loads")
    def to_dict(self, include: set[str] | None = None) -> dict[str, Any]:
        """The load as SGLang's fields; ours are among the core ones, always there."""
        load: dict[str, Any] = super().to_dict(include)
        ours = ("tokenflow_headroom_tokens", "tokenflow_expected_wait_s")
        return {**load, **{name: getattr(self, name) for name in ours}}


class LoadDecoder:
    """In the place of SGLang's decoder, where /v1/loads is answered: knows headroom, too.

    A class, because SGLang's registry of hooks puts functions and classes in place, no objects.
    """

    decode = staticmethod(msgspec.msgpack.Decoder(LoadWithHeadroom).decode)
