"""How long a prefill step may be."""

from __future__ import annotations

import pytest
from sglang.srt.managers.schedule_policy import PrefillAdder

from tokenflow_sgl.engine.prefill_adder import AdmissionLimits, adder_class


@pytest.mark.parametrize(
    ("limit", "page", "align", "chunk"),
    [
        (256, 1, None, 256),
        (257, 64, None, 256),
        (10, 64, None, 64),
        (256, 1, 4096, 4096),
        (4096, 1, 4096, 4096),
        (4097, 1, 4096, 8192),
        (256, 64, 96, 384),
        (256, None, None, 8192),
    ],
)
def test_a_chunk_is_whole_pages_or_whole_pieces(monkeypatch, limit, page, align, chunk) -> None:
    """Before the rows that decode beside it are taken off; never longer than SGLang's own."""
    given = []
    monkeypatch.setattr(PrefillAdder, "__init__", lambda self, *args: given.append(args))
    active = page is not None
    limits = AdmissionLimits(active=active, prefill_limit=limit, align=align)
    adder_class(limits)(page or 1, None, None, None, 0.5, 16_384, 8192, 0)
    assert given[0][6] == chunk
    adder_class(limits)(page or 1, None, None, None, 0.5, 16_384, 8192, 30)
    assert given[1][6] == min(chunk + (30 if active else 0), 8192)
