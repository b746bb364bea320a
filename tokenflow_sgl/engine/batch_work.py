"""What SGLang's batches compute, for the timer of their steps."""

from __future__ import annotations

from tokenflow_sgl.costs import Work, attention_work
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.request import Req


def loaded_tokens(req: Req) -> int:
    """Tokens that a request's present prefill brings back from the host.

    SGLang keeps the last load's length when a later match finds nothing on the host.
    """
    return int(req.host_loaded_length) if req.host_hit_length > 0 else 0


def work_of(batch: ReqBatch | None, *, crowded: bool, queued: bool = False) -> Work | None:
    """What a batch of SGLang's computes; None for no batch.

    crowded, queued: As of `Work`.
    """
    if batch is None or not batch.reqs:
        return None
    if batch.forward_mode.is_decode():
        # Backends that need no lengths on the host leave them out of speculative batches.
        lengths = batch.seq_lens_cpu
        context = sum(req.seqlen for req in batch.reqs) if lengths is None else int(lengths.sum())
        held = bool(batch.is_extend_in_batch)
        return Work(decoding=len(batch.reqs), context=context, crowded=crowded, held=held)
    decoding = set(batch.decoding_reqs or ())
    fresh = [req for req in batch.reqs if req not in decoding]
    return Work(
        held=not fresh,
        decoding=len(decoding),
        context=sum(req.seqlen for req in decoding),
        tokens=sum(req.extend_len for req in fresh),
        attention=float(sum(attention_work(req.extend_len, req.prefix_len) for req in fresh)),
        loaded=sum(map(loaded_tokens, fresh)),
        crowded=crowded,
        queued=queued,
    )
