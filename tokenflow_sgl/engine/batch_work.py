"""What SGLang's batches compute, for the timer of their steps."""

from __future__ import annotations

from typing import Any

from tokenflow_sgl.costs import Work, attention_work


def loaded_tokens(req: Any) -> int:
    """Tokens that a request's present prefill brings back from the host.

    SGLang keeps the last load's length when a later match finds nothing on the host.
    """
    return int(req.host_loaded_length) if req.host_hit_length > 0 else 0


def work_of(batch: Any, *, crowded: bool) -> Work | None:
    """What a batch of SGLang's computes; None for no batch."""
    if batch is None or not batch.reqs:
        return None
    if batch.forward_mode.is_decode():
        context = int(batch.seq_lens_cpu.sum()) if batch.seq_lens_cpu is not None else 0
        return Work(decoding=len(batch.reqs), context=context, crowded=crowded)
    decoding = set(batch.decoding_reqs or ())
    fresh = [req for req in batch.reqs if req not in decoding]
    return Work(
        decoding=len(decoding),
        context=sum(req.seqlen for req in decoding),
        tokens=sum(req.extend_len for req in fresh),
        attention=float(sum(attention_work(req.extend_len, req.prefix_len) for req in fresh)),
        loaded=sum(map(loaded_tokens, fresh)),
        crowded=crowded,
    )
