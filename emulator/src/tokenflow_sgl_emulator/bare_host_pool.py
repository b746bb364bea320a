"""HiCache's host pool without memory: for tests and timings of what hands out its slots."""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.pool_host.base import HostKVCache


class BareHostPool(HostKVCache):
    """SGLang's pool whose copies go nowhere; allocating and freeing slots is SGLang's own.

    Args:
        page: tokens per page.
        tokens: capacity; what is left of the last page is not used.
    """

    def __init__(self, page: int, tokens: int) -> None:
        super().__init__(
            dtype=torch.float16,
            device_capacity_tokens=tokens,
            size_per_token=1,
            start_layer=0,
            end_layer=1,
            host_to_device_ratio=1,
            host_size=0,
            page_size=page,
            layout="layer_first",
            pin_memory=False,
            device="cpu",
            is_dummy=True,
            host_token_capacity=tokens // page * page,
        )


for _name in HostKVCache.__abstractmethods__:
    setattr(BareHostPool, _name, lambda _self, *_args, **_kwargs: None)
BareHostPool.__abstractmethods__ = frozenset()
