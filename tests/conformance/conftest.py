"""The four bodies, one after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from conforming import AMPLE, DONE, NAMES

if TYPE_CHECKING:
    from lifecycle_bodies import Rig


@pytest.fixture(params=DONE, ids=NAMES.__getitem__)
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Rig]:
    """Makes a body with so many free tokens."""
    import lifecycle_bodies  # not before it is needed: it imports SGLang

    polls = SimpleNamespace(disaggregation_decode_polling_interval=1)
    monkeypatch.setattr("tokenflow_sgl.engine.body.decode.get_disagg", lambda: polls)
    found: type[Rig] = getattr(lifecycle_bodies, request.param)
    return found


@pytest.fixture
def rig(make) -> Rig:
    """A body with enough memory."""
    return make(AMPLE)
