"""What ``tokenflow plan --json`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenflow_sgl.cli.plan_output import Planned


def object_of(found: Planned) -> dict[str, Any]:
    """The plan as plain values; streams and layers count from 1."""
    made, timeline = found.plan, found.timeline
    paused = {stream: reason.value for stream, reason in made.paused}
    streams = [
        {
            "tokens": tokens,
            "paused": paused.get(stream),
            "layers_on_host": (
                []
                if stream in paused
                else [int(layer) for layer in made.layouts.choices[made.layout[stream]]]
            ),
        }
        for stream, tokens in enumerate(found.tokens)
    ]
    step: dict[str, Any] | None = None
    if timeline is not None:
        runs = found.runs
        step = {
            "seconds": timeline.seconds,
            "computing_s": found.machine.computing,
            "stalled_s": timeline.stalled,
            "bound_s": float(made.bound),
            "late": found.late,
            "layers": [
                {"start_s": float(start), "stall_s": float(stall)}
                for start, stall in zip(timeline.start, timeline.stall, strict=True)
            ],
            "copies": [
                {
                    "stream": runs[copy.stream] + 1,
                    "layer": copy.layer,
                    "ready_s": copy.ready,
                    "pieces_s": [[piece.begin, piece.end] for piece in copy.pieces],
                }
                for copy in timeline.copies
            ],
        }
    return {
        "device": found.profile.device,
        "model": found.profile.model,
        "layers": found.machine.layers,
        "page_size": found.page,
        "kv_tokens": round(found.tokens_of(found.machine.memory)),
        "link_bytes_per_s": found.machine.bandwidth * found.block_bytes,
        "staging": str(found.machine.staging),
        "ahead": found.terms.ahead,
        "streams": streams,
        "used_kv_tokens": found.tokens_of(float(made.blocks)),
        "step": step,
        "lasts_steps": made.lasts if timeline is not None else 0,
        "without_stalls": {
            "kv_tokens": found.memory_wanted,
            "link_bytes_per_s": found.link_wanted,
        },
        "one_more_stream": {
            "step_s": float(found.one_more.seconds),
            "paused": [stream + 1 for stream, _ in found.one_more.paused],
        },
    }
