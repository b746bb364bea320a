"""What of the streams' KV is copied between device and host, and when: pure plans.

`write_through` copies KV of running streams to the host before they are preempted, `restore` brings
that of paused streams back, and `chunks` divides the memory among those that come back.
"""

from tokenflow_sgl.offload.chunks import DeviceRoom, chunk
from tokenflow_sgl.offload.restore import dearer_to_load, restore
from tokenflow_sgl.offload.write_through import proactive_writes

__all__ = [
    "DeviceRoom",
    "chunk",
    "dearer_to_load",
    "proactive_writes",
    "restore",
]
