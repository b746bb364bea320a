"""Run real SGLang without a GPU: an out-of-tree CPU platform, HiCache on it, and tiny models.

Select it with ``SGLANG_PLATFORM=tokenflow_emu``; without that variable the package does nothing.
Importing it imports neither torch nor SGLang: each module is loaded where it is needed.
"""

PLATFORM_NAME = "tokenflow_emu"
"""Entry-point name of the platform and the plugin; the value that ``SGLANG_PLATFORM`` must have."""

ATTENTION_BACKEND_NAME = "tokenflow_cpu"
"""Name of the reference attention backend, as given to ``--attention-backend``."""

__all__ = ["ATTENTION_BACKEND_NAME", "PLATFORM_NAME"]
