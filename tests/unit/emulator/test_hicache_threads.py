"""SGLang's own storage threads on a virtual clock: an emulated storage, and no server."""

import json
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tokenflow_sgl_emulator.storage import storage_threads
from tokenflow_sgl_emulator.storage.storage_threads import start_storage_threads
from tokenflow_sgl_emulator.timed.clock import VirtualClock

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang warns on import that there is no GPU
    from sglang.srt.managers import cache_controller
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache import utils
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    from tokenflow_sgl_emulator.storage import emulated_storage
    from tokenflow_sgl_emulator.storage.emulated_storage import EmulatedStorage

PAGE, PAGES, BATCH = 4, 8, 3
KEYS = [f"{number:064x}" for number in range(PAGES)]
LATENCY_S, PAGE_S = 0.5, 2.0


class Pool:
    """Host memory of one byte per token."""

    layout, page_size, dtype, size_per_token = "page_first", PAGE, torch.uint8, 1

    def __init__(self) -> None:
        self.rows = torch.arange(3 * PAGES * PAGE, dtype=torch.uint8)

    def get_data_page(self, slot: int, flat: bool) -> torch.Tensor:
        return self.rows[slot : slot + PAGE]

    def set_from_flat_data_page(self, slot: int, page: torch.Tensor) -> None:
        self.rows[slot : slot + PAGE] = page


class Controller(HiCacheController):  # type: ignore[misc]
    """What of SGLang's controller its storage threads use."""

    def __init__(self, storage: EmulatedStorage, pool: Pool) -> None:
        self.storage_backend, self.mem_pool_host, self.page_size = storage, pool, PAGE
        self.storage_config = SimpleNamespace(is_storage_writer=True)
        self.storage_stop_event = threading.Event()
        self.enable_storage = True
        self.prefetch_hits_sync_groups = self.prefetch_completion_sync_groups = []
        self.page_get_func = self._page_get_zero_copy
        self.page_set_func = self._page_set_zero_copy
        self.write_queue, self.load_queue = [], []
        self.ack_write_queue, self.ack_load_queue = [], []

    def acks(self) -> list[int | None]:
        """Tokens that the scheduler hears of; None: the end of a request."""
        queue = self.ack_prefetch_queue
        return [queue.get().completed_tokens for _ in range(queue.qsize())]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    made = VirtualClock()
    for module in (emulated_storage, storage_threads):
        monkeypatch.setattr(module, "the_clock", lambda: made)
    monkeypatch.setattr(cache_controller, "STORAGE_BATCH_SIZE", BATCH)
    # A C++ extension that is compiled when it is first used.
    monkeypatch.setattr(cache_controller, "get_storage_hash_str", lambda *_, **__: KEYS)
    monkeypatch.setattr(utils, "get_hash_str", lambda *_, **__: KEYS)
    return made


@pytest.fixture
def controller(clock: VirtualClock, tmp_path: Path) -> Iterator[Controller]:
    pool = Pool()
    config = HiCacheStorageConfig(
        *(0, 1, 0, 1, 0, 1),
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="model",
        extra_config={
            "interface_v1": 1,
            "read_gbps": PAGE / PAGE_S * 8e-9,
            "write_gbps": 4 * PAGE / PAGE_S * 8e-9,
            "latency_us": LATENCY_S * 1e6,
            "log": str(tmp_path / "log"),
        },
    )
    storage = EmulatedStorage(config, {})
    storage.register_mem_pool_host(pool)
    made = Controller(storage, pool)
    start_storage_threads(HiCacheController._start_storage_threads, made)
    yield made
    made._stop_storage_threads()


def slots(first_page: int) -> torch.Tensor:
    return torch.arange(first_page * PAGE, (first_page + PAGES) * PAGE)


def store(controller: Controller, clock: VirtualClock) -> None:
    controller.write_storage(slots(0), [], list(KEYS))
    clock.settle()
    assert controller.ack_backup_queue.get(block=False).completed_tokens == PAGES * PAGE


def query(controller: Controller, clock: VirtualClock) -> Any:
    """Ask for the prompt, and take what was found, as the scheduler does."""
    operation = controller.prefetch("request", list(range(PAGES * PAGE)))
    clock.settle()
    assert controller.prefetch_hit_queue.get(block=False) is operation
    return operation


def test_writing_takes_its_batches_time(controller: Controller, clock: VirtualClock) -> None:
    store(controller, clock)
    assert clock.now() == pytest.approx(3 * LATENCY_S + PAGES * PAGE_S / 4)


def test_a_query_takes_the_latency_of_each_batch(
    controller: Controller, clock: VirtualClock
) -> None:
    store(controller, clock)
    began = clock.now()
    controller.prefetch("request", list(range(PAGES * PAGE)))
    clock.wait_until(began + 2.99 * LATENCY_S)
    assert controller.prefetch_hit_queue.empty()
    clock.wait_until(began + 3.01 * LATENCY_S)
    assert controller.prefetch_hit_queue.get(block=False).storage_hit_count == PAGES * PAGE


def test_reading_is_told_batch_by_batch(controller: Controller, clock: VirtualClock) -> None:
    store(controller, clock)
    operation = query(controller, clock)
    operation.host_indices = slots(PAGES)
    controller.mem_pool_host.rows[PAGES * PAGE :] = 0
    began = clock.now()
    controller.prefetch_buffer.put(operation)
    batch = LATENCY_S + BATCH * PAGE_S
    heard = []
    for moment in (batch - 0.01, batch + 0.01, 2 * batch + 0.01, 3 * batch):
        clock.wait_until(began + moment)
        heard.append(controller.acks())
    assert heard == [[], [BATCH * PAGE], [2 * BATCH * PAGE], [PAGES * PAGE, None]]
    rows = controller.mem_pool_host.rows
    assert torch.equal(rows[: PAGES * PAGE], rows[PAGES * PAGE : 2 * PAGES * PAGE])


def test_a_long_step_does_not_hold_the_link_up(
    controller: Controller, clock: VirtualClock, tmp_path: Path
) -> None:
    """The scheduler looks once, much later: the transfers were one after the other all the same."""
    store(controller, clock)
    operation = query(controller, clock)
    operation.host_indices = slots(PAGES)
    began = clock.now()
    controller.prefetch_buffer.put(operation)
    clock.wait_until(began + 1000.0)
    assert controller.acks() == [BATCH * PAGE, 2 * BATCH * PAGE, PAGES * PAGE, None]
    (log,) = tmp_path.iterdir()
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    ends = [call["end_s"] - began for call in calls if call["call"] == "read"]
    batch = LATENCY_S + BATCH * PAGE_S
    assert ends == pytest.approx([batch, 2 * batch, 3 * LATENCY_S + PAGES * PAGE_S])


def test_sglang_can_stop_its_threads_in_the_middle(
    controller: Controller, clock: VirtualClock
) -> None:
    """As a flush of the caches does: then other threads take from the same queues."""
    store(controller, clock)
    for _ in range(3):
        operation = query(controller, clock)
        operation.host_indices = slots(PAGES)
        controller.prefetch_buffer.put(operation)
        clock.wait_until(clock.now() + LATENCY_S)
        controller.reset()  # raises where a thread does not end
    began = clock.now()
    operation = query(controller, clock)
    assert clock.now() == pytest.approx(began + 3 * LATENCY_S)
    operation.host_indices = slots(PAGES)
    controller.prefetch_buffer.put(operation)
    clock.wait_until(clock.now() + 1000.0)
    assert controller.acks() == [BATCH * PAGE, 2 * BATCH * PAGE, PAGES * PAGE, None]
