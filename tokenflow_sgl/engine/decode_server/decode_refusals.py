"""What the scheduler does not serve on a decode server, and why."""

from __future__ import annotations

OF_DECODING: tuple[tuple[str, object, str], ...] = (
    (
        "disaggregation_decode_enable_radix_cache",
        False,
        "only decode servers without a prefix tree have been tried",
    ),
    (
        "disaggregation_decode_enable_offload_kvcache",
        False,
        "it copies KV of running streams to a storage by itself",
    ),
    (
        "disaggregation_decode_host_receive_threshold",
        1,
        "KV that arrives on the host has not been tried",
    ),
    ("enable_pd_role_switch", False, "a server that changes its role has not been tried"),
)
"""Options that exclude it there: name, value that does not, reason."""
NOT_OF_DECODING = {"disable_radix_cache"}
"""Options that exclude it elsewhere only: KV of paused streams is kept on the host."""
BACKUP = "disaggregation_decode_retraction_backup"
NO_BACKUP = "paused streams' KV is kept as SGLang keeps that of retracted ones"
"""Why it must not be none."""
