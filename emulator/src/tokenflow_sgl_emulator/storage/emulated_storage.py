"""A storage backend of HiCache behind an emulated link.

SGLang loads it itself (`--hicache-storage-backend dynamic`); `storage_flags` writes the options.
Pages are really kept and read back. Where a device is emulated, the bytes on the link are those of
its model and times are on its clock; else both are what they are here.
"""

import json
import threading
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
)

from tokenflow_sgl_emulator.storage.emulated_link import EmulatedLink
from tokenflow_sgl_emulator.storage.link_faults import LinkFaults
from tokenflow_sgl_emulator.storage.link_settings import LinkSettings, settings_of
from tokenflow_sgl_emulator.storage.page_store import PageStore
from tokenflow_sgl_emulator.timed.clock import the_clock
from tokenflow_sgl_emulator.timed.device import dilation, the_device, timing_is_on

CALLS = ("query", "read", "write")
"""What HiCache asks of a storage, each with a queue of its own: the link is full duplex."""


class EmulatedStorage(HiCacheStorage):
    """One rank's storage: its own link, its own pages.

    Args:
        config: SGLang's; `extra_config` holds the fields of `LinkSettings`.
        _kwargs: What SGLang hands to every backend that it loads so; not used.

    Raises:
        ValueError: The extra configuration is not allowed; the message names the field.
    """

    def __init__(self, config: HiCacheStorageConfig, _kwargs: Any = None) -> None:
        extra = config.extra_config or {}
        if extra.get("interface_v1") != 1:
            raise ValueError(
                f"interface_v1 of the storage link is {extra.get('interface_v1')!r}; allowed is 1"
            )
        self._settings = settings_of(extra)
        self._rank = (
            f"{config.tp_rank}of{config.tp_size}-pp{config.pp_rank}of{config.pp_size}"
            f"-cp{config.attn_cp_rank}of{config.attn_cp_size}"
        )
        self._model = (config.model_name or "model").replace("/", "-")
        self._clock, self._dilation = the_clock(), dilation()
        self._links = {
            call: EmulatedLink(self._clock, self._dilation, f"{self._settings.seed} {call}")
            for call in CALLS
        }
        self._faults = LinkFaults(self._rank)
        self._lock = threading.Lock()
        self._log = Path(f"{self._settings.log}.{self._rank}") if self._settings.log else None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """SGLang's host pool, from which and to which pages are copied."""
        super().register_mem_pool_host(mem_pool_host)
        self._page_tokens = int(mem_pool_host.page_size)
        token_bytes = mem_pool_host.size_per_token
        if timing_is_on():
            token_bytes = the_device().profile.kv_bytes_per_token
        self._page_bytes = self._page_tokens * token_bytes
        folder = None
        if self._settings.directory is not None:
            # All that decides what the bytes of a page mean.
            kind = f"{self._model}-{mem_pool_host.dtype}-{mem_pool_host.layout}"
            name = f"{kind}-{self._page_tokens}-{self._rank}"
            folder = Path(self._settings.directory) / name
        self._store = PageStore(folder)

    # ---- what HiCache calls, on its own threads ----------------------------------------------

    def batch_exists(
        self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        """How many of the first keys are there, until one is not."""
        settings, dead = self._begin("query", keys)
        found = 0
        if not dead:
            found = next((i for i, key in enumerate(keys) if key not in self._store), len(keys))
        self._wait("query", settings, keys, found, dead)
        return found

    def batch_get_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Read pages into these host slots; per page, whether it is there now."""
        settings, _ = self._begin("read", keys)
        with self._lock:
            through = self._faults.let_through(len(keys), self._now())
            pages = self._faults.read(self._store, keys[:through])
        pages += [None] * (len(keys) - through)
        moved = sum(page is not None for page in pages)
        self._wait("read", settings, keys, moved, through < len(keys))
        # Only now: a page is in its slot when the link has brought it, and not before.
        slots = host_indices[:: self._page_tokens].tolist()
        for slot, page in zip(slots, pages, strict=True):
            if page is not None:
                flat = torch.frombuffer(bytearray(page), dtype=self.mem_pool_host.dtype)
                self.mem_pool_host.set_from_flat_data_page(slot, flat)
        return [page is not None for page in pages]

    def batch_get_layers(
        self, keys: list[str], host_indices: torch.Tensor, first: int, last: int
    ) -> list[bool]:
        """Read layers `first` to before `last` of pages; per page, whether they are there now.

        A page's bytes are K of all layers and then V of all layers, as with the layouts layer_first
        and page_first_direct.
        """
        settings, _ = self._begin("read", keys)
        with self._lock:
            through = self._faults.let_through(len(keys), self._now())
            pages = self._faults.read(self._store, keys[:through])
        pages += [None] * (len(keys) - through)
        moved = sum(page is not None for page in pages)
        layers = int(self.mem_pool_host.layer_num)
        share = (last - first) / layers
        self._wait("read", settings, keys, moved, through < len(keys), share)
        slots = host_indices[:: self._page_tokens].tolist()
        for slot, page in zip(slots, pages, strict=True):
            if page is not None:
                flat = torch.frombuffer(bytearray(page), dtype=self.mem_pool_host.dtype)
                target = self._layers_of(slot, first, last)
                target.copy_(flat.view(2, layers, -1)[:, first:last].reshape(target.shape))
        return [page is not None for page in pages]

    def batch_set_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Keep pages from these host slots; those that are kept already do not use the link."""
        settings, _ = self._begin("write", keys)
        new = [i for i, key in enumerate(keys) if key not in self._store]
        with self._lock:
            through = self._faults.let_through(len(new), self._now())
        slots = host_indices[:: self._page_tokens].tolist()
        pages = [(keys[i], self._page_in(slots[i])) for i in new[:through]]
        self._wait("write", settings, keys, len(pages), through < len(new))
        for key, page in pages:
            self._store.put(key, page)
        lost = set(new[through:])
        return [i not in lost for i in range(len(keys))]

    def clear(self) -> None:
        """Forget all pages of this rank."""
        self._store.clear()

    def exists(self, key: str) -> bool:
        """Whether a page is there."""
        return self.batch_exists([key]) == 1

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Not reached: with `interface_v1` SGLang reads and writes whole batches."""
        raise NotImplementedError

    batch_get = set = batch_set = get

    # ---- how ------------------------------------------------------------------------------

    def _begin(self, call: str, keys: list[str]) -> tuple[LinkSettings, bool]:
        """A call begins: what holds for it, and whether the link is dead."""
        settings = self._settings.changed()
        with self._lock:
            self._faults.under(settings, self._now())
            self._faults.raise_if_due(call, keys)
            return settings, self._faults.dead(self._now())

    def _layers_of(self, slot: int, first: int, last: int) -> torch.Tensor:
        pool = self.mem_pool_host
        if pool.layout == "layer_first":
            return pool.kv_buffer[:, first:last, slot : slot + self._page_tokens]
        return pool.kv_buffer[:, slot // self._page_tokens, first:last]

    def _wait(
        self,
        call: str,
        settings: LinkSettings,
        keys: list[str],
        pages: int,
        dead: bool,
        share: float = 1.0,
    ) -> None:
        """Return when the call is answered; `pages` of them were moved, or found by a query.

        share: of their bytes.
        """
        asked = self._now()
        moment = self._links[call].reserve(
            0 if call == "query" else pages * self._page_bytes * share,
            settings.rate(writing=call == "write"),
            settings.latency_us * 1e-6,
            settings.jitter_us * 1e-6,
        )
        if dead:
            moment += settings.dead_reply_s * self._dilation
        self._clock.wait_until(moment)
        if self._log is not None:
            times = {"asked_s": asked, "due_s": moment / self._dilation, "end_s": self._now()}
            line = {"call": call, **times, "keys": len(keys), "pages": pages}
            with self._lock, self._log.open("a") as log:
                log.write(json.dumps(line) + "\n")

    def _now(self) -> float:
        """Emulated seconds."""
        return self._clock.now() / self._dilation

    def _page_in(self, slot: int) -> bytes:
        flat = self.mem_pool_host.get_data_page(slot, flat=True)
        return bytes(flat.contiguous().view(torch.uint8).numpy().tobytes())
