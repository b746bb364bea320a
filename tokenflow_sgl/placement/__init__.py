"""Which layers' KV lies on the device, stream by stream, for the shortest decode step. Pure plans.

After OrbitFlow (PVLDB 19(1)). `layouts` has the choices of a stream, `machine` what a plan is made
for, and `latency` plays a decode step.
"""

from tokenflow_sgl.placement.latency import Copy, Piece, Timeline, decode_step
from tokenflow_sgl.placement.layouts import (
    Layout,
    Layouts,
    any_number,
    every,
    every_kth,
    for_batch,
    half_phases,
)
from tokenflow_sgl.placement.machine import (
    Machine,
    Sharing,
    Staging,
    resident_blocks,
    staging_blocks,
)

__all__ = [
    "Copy",
    "Layout",
    "Layouts",
    "Machine",
    "Piece",
    "Sharing",
    "Staging",
    "Timeline",
    "any_number",
    "decode_step",
    "every",
    "every_kth",
    "for_batch",
    "half_phases",
    "resident_blocks",
    "staging_blocks",
]
