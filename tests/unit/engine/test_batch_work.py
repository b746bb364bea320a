"""What SGLang's batches compute, as the timer of steps sees them."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from tokenflow_sgl.costs import Work
from tokenflow_sgl.engine.batch_work import work_of


class Request(SimpleNamespace):
    """Compared as SGLang's are: each is itself."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


def batch(mode: ForwardMode, rows: list[tuple[int, int]], decoding: int = 0, **given):
    """Rows of (sequence length, length of the last prefill); the last `decoding` only decode."""
    reqs = [
        Request(seqlen=length, extend_len=new, prefix_len=length - new, host_hit_length=0)
        for length, new in rows
    ]
    return SimpleNamespace(
        forward_mode=mode,
        reqs=reqs,
        decoding_reqs=reqs[len(reqs) - decoding :] if decoding else None,
        seq_lens_cpu=torch.tensor([length for length, _ in rows]),
        is_extend_in_batch=given.get("is_extend_in_batch", False),
    )


def test_no_batch_and_one_without_requests_compute_nothing() -> None:
    assert work_of(None, crowded=False) is None
    assert work_of(batch(ForwardMode.IDLE, []), crowded=False) is None, "for the other ranks' sake"


def test_a_decode_step() -> None:
    made = batch(ForwardMode.DECODE, [(10, 4), (20, 4)])
    assert work_of(made, crowded=True) == Work(decoding=2, context=30, crowded=True)


def test_a_mixed_step() -> None:
    made = batch(ForwardMode.MIXED, [(50, 40), (20, 4)], decoding=1, is_extend_in_batch=True)
    found = work_of(made, crowded=False)
    assert (found.decoding, found.context, found.tokens, found.held) == (1, 20, 40, False)
    assert not found.queued and work_of(made, crowded=False, queued=True).queued


def test_a_decode_step_beside_another_ranks_prefill_is_held() -> None:
    """Also where SGLang turns it into a prefill of a token each, so that a graph can run it."""
    for mode, decoding in ((ForwardMode.DECODE, 0), (ForwardMode.EXTEND, 2)):
        made = batch(mode, [(10, 4), (20, 4)], decoding=decoding, is_extend_in_batch=True)
        found = work_of(made, crowded=False)
        assert (found.decoding, found.context, found.tokens, found.held) == (2, 30, 0, True)
