"""The launch options of a server whose HiCache has an emulated storage behind it."""

import json
from typing import Any

from tokenflow_sgl_emulator.storage.link_settings import settings_of

MODULE = "tokenflow_sgl_emulator.storage.emulated_storage"
PREFETCH_TOKENS = 256
"""SGLang's own: fewer tokens are not worth a query."""
POLICIES = ("best_effort", "wait_complete", "timeout")


def storage_flags(
    policy: str = "wait_complete", prefetch_tokens: int = PREFETCH_TOKENS, **settings: Any
) -> list[str]:
    """Options for `sglang.launch_server`, beside those of HiCache's host memory.

    Args:
        policy: What a request does whose pages are still on their way, one of `POLICIES`.
        prefetch_tokens: Fewest tokens that are looked for in the storage; a page at least.
        **settings: Fields of `LinkSettings`, e.g. ``read_gbps=10``.

    Raises:
        ValueError: One of them is not allowed; the message names it.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; allowed is one of {', '.join(POLICIES)}")
    if prefetch_tokens < 1:
        raise ValueError(f"prefetch_tokens is {prefetch_tokens!r}; allowed is a number from 1")
    settings_of(settings)
    loaded = {"backend_name": "emulated", "module_path": MODULE, "class_name": "EmulatedStorage"}
    extra = {**loaded, "interface_v1": 1, "prefetch_threshold": prefetch_tokens, **settings}
    return [
        "--enable-hierarchical-cache",
        "--hicache-storage-backend",
        "dynamic",
        "--hicache-storage-backend-extra-config",
        json.dumps(extra),
        "--hicache-storage-prefetch-policy",
        policy,
    ]
