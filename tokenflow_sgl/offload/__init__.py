"""What of the streams' KV is copied between device and host, and when: pure plans."""

from tokenflow_sgl.offload.writing import CHUNK, MOST, Write, plan_writes

__all__ = ["CHUNK", "MOST", "Write", "plan_writes"]
