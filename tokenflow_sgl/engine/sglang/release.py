"""What is done in another way on another release of SGLang, as the installed one has it."""

from __future__ import annotations

from tokenflow_sgl.engine.sglang.version import at_least

if at_least("0.5.23"):
    from tokenflow_sgl.engine.sglang.since_0_5_23 import (
        MIXES_STATES,
        WORKERS_SERVE_OURS,
        heard,
        hold_controller,
        hold_server_info,
        kept_by_windows,
        megamoe,
        opening_of,
        said,
    )
else:
    from tokenflow_sgl.engine.sglang.before_0_5_23 import (
        MIXES_STATES,
        WORKERS_SERVE_OURS,
        heard,
        hold_controller,
        hold_server_info,
        kept_by_windows,
        megamoe,
        opening_of,
        said,
    )

__all__ = [
    "MIXES_STATES",
    "WORKERS_SERVE_OURS",
    "heard",
    "hold_controller",
    "hold_server_info",
    "kept_by_windows",
    "megamoe",
    "opening_of",
    "said",
]
