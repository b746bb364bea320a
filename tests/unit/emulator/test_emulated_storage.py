"""The storage backend as HiCache's threads call it, on a virtual clock and without a server."""

import json
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl_emulator.storage.storage_threads import WorkQueue
from tokenflow_sgl_emulator.timed.clock import VirtualClock

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang warns on import that there is no GPU
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    from tokenflow_sgl_emulator.storage import emulated_storage
    from tokenflow_sgl_emulator.storage.emulated_storage import EmulatedStorage

PAGE, SLOTS, WIDTH = 4, 64, 6
KEYS = [f"{number:064x}" for number in range(8)]
GBPS = 8e-6  # 1,000 bytes per second


class Pool:
    """Host memory in which a token is a row."""

    layout = "page_first"
    page_size = PAGE

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        self.dtype = dtype
        self.size_per_token = WIDTH * dtype.itemsize
        self.rows = torch.randn(SLOTS, WIDTH).to(dtype)

    def get_data_page(self, slot: int, flat: bool) -> torch.Tensor:
        assert flat
        return self.rows[slot : slot + PAGE].flatten()

    def set_from_flat_data_page(self, slot: int, page: torch.Tensor) -> None:
        self.rows[slot : slot + PAGE] = page.reshape(PAGE, WIDTH)


PAGE_BYTES = PAGE * WIDTH * torch.bfloat16.itemsize


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    made = VirtualClock()
    monkeypatch.setattr(emulated_storage, "the_clock", lambda: made)
    return made


def config(rank: int = 0, size: int = 1, **extra: Any) -> HiCacheStorageConfig:
    return HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=size,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="some/model",
        extra_config={"interface_v1": 1, "latency_us": 0, **extra},
    )


def backend(pool: Pool, rank: int = 0, size: int = 1, **extra: Any) -> EmulatedStorage:
    made = EmulatedStorage(config(rank, size, **{"read_gbps": GBPS, **extra}), {})
    made.register_mem_pool_host(pool)
    return made


def slots(first_page: int, pages: int = len(KEYS)) -> torch.Tensor:
    return torch.arange(first_page * PAGE, (first_page + pages) * PAGE)


def on_threads(clock: VirtualClock, *calls: Callable[[], Any]) -> list[tuple[Any, float]]:
    """Make each call on a thread of its own that the clock knows; what it gave, and when."""
    answers: dict[int, tuple[Any, float]] = {}

    def run(number: int, queue: WorkQueue) -> None:
        call = queue.get()
        answers[number] = (call(), clock.now())
        queue.get()

    queues = [WorkQueue(clock) for _ in calls]
    threads = [threading.Thread(target=run, args=item) for item in enumerate(queues)]
    for thread, queue, call in zip(threads, queues, calls, strict=True):
        queue.put(call)
        thread.start()
    clock.settle()
    for thread, queue in zip(threads, queues, strict=True):
        queue.put(None)
        thread.join()
    return [answers[number] for number in range(len(calls))]


def filled(clock: VirtualClock, pool: Pool, **extra: Any) -> EmulatedStorage:
    """A storage that holds what the pool has in its first 8 pages."""
    made = backend(pool, write_gbps=1e9, **extra)
    ((stored, _),) = on_threads(clock, lambda: made.batch_set_v1(KEYS, slots(0)))
    assert stored == [True] * 8
    return made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("kept", ["memory", "folder"])
def test_pages_come_back_byte_for_byte(
    clock: VirtualClock, tmp_path: Path, dtype: torch.dtype, kept: str
) -> None:
    pool = Pool(dtype)
    wanted = pool.rows[: 8 * PAGE].clone()
    directory = str(tmp_path) if kept == "folder" else None
    storage = filled(clock, pool, directory=directory)
    pool.rows[: 8 * PAGE] = torch.zeros(8 * PAGE, WIDTH).to(dtype)
    if directory:  # a restart
        storage = backend(pool, directory=directory)
    order = torch.cat([slots(8 + page, 1) for page in (3, 1, 2, 0, 7, 6, 5, 4)])
    ((read, _),) = on_threads(clock, lambda: storage.batch_get_v1(KEYS, order))
    assert read == [True] * 8
    assert torch.equal(pool.rows[order].view(torch.uint8), wanted.view(torch.uint8))


def test_a_read_takes_bytes_over_rate_plus_latency(clock: VirtualClock) -> None:
    storage = filled(clock, Pool(), latency_us=2e6)
    began = clock.now()
    ((read, end),) = on_threads(clock, lambda: storage.batch_get_v1(KEYS, slots(8)))
    assert read == [True] * 8
    assert end - began == pytest.approx(8 * PAGE_BYTES / 1000 + 2)
    ((_, later),) = on_threads(clock, lambda: storage.batch_exists(KEYS))
    assert later - end == pytest.approx(2), "a query moves no pages"


def test_a_page_is_not_in_its_slot_before_it_has_landed(clock: VirtualClock) -> None:
    pool = Pool()
    storage = filled(clock, pool)
    pool.rows[8 * PAGE :] = 0
    began = clock.now()
    seen: list[bool] = []

    def look() -> None:
        for _ in range(4):
            clock.wait_until(clock.now() + PAGE_BYTES * 8 / 1000 / 5)
            seen.append(bool(pool.rows[8 * PAGE : 16 * PAGE].any()))

    (_, end), _ = on_threads(clock, lambda: storage.batch_get_v1(KEYS, slots(8)), look)
    assert seen == [False] * 4 and end > began
    assert torch.equal(pool.rows[: 8 * PAGE], pool.rows[8 * PAGE : 16 * PAGE])


def test_two_reads_share_the_link_and_a_write_does_not(clock: VirtualClock) -> None:
    storage = backend(Pool())
    on_threads(clock, lambda: storage.batch_set_v1(KEYS[:4], slots(0, 4)))
    began, four = clock.now(), 4 * PAGE_BYTES / 1000
    ends = [
        end - began
        for _, end in on_threads(
            clock,
            lambda: storage.batch_get_v1(KEYS[:4], slots(8, 4)),
            lambda: storage.batch_get_v1(KEYS[:4], slots(12, 4)),
            lambda: storage.batch_set_v1(KEYS[4:], slots(4, 4)),
        )
    ]
    assert sorted(ends[:2]) == pytest.approx([four, 2 * four])
    assert ends[2] == pytest.approx(four)


def test_pages_that_are_there_are_not_written_again(clock: VirtualClock) -> None:
    pool = Pool()
    storage = backend(pool)
    on_threads(clock, lambda: storage.batch_set_v1(KEYS[:6], slots(0, 6)))
    began = clock.now()
    ((stored, end),) = on_threads(clock, lambda: storage.batch_set_v1(KEYS, slots(0)))
    assert stored == [True] * 8
    assert end - began == pytest.approx(2 * PAGE_BYTES / 1000)


def test_a_query_counts_until_the_first_gap(clock: VirtualClock) -> None:
    storage = backend(Pool())
    present = [KEYS[number] for number in (0, 1, 3)]
    on_threads(clock, lambda: storage.batch_set_v1(present, slots(0, 3)))
    ((hit, _),) = on_threads(clock, lambda: storage.batch_exists(KEYS))
    assert hit == 2
    storage.clear()
    ((hit, _),) = on_threads(clock, lambda: storage.batch_exists(KEYS))
    assert hit == 0


def test_ranks_keep_their_own_pages_in_one_folder(clock: VirtualClock, tmp_path: Path) -> None:
    pools = [Pool(), Pool()]
    both = [
        backend(pool, rank, 2, directory=str(tmp_path), write_gbps=1e9)
        for rank, pool in enumerate(pools)
    ]
    for storage in both:
        on_threads(clock, lambda storage=storage: storage.batch_set_v1(KEYS, slots(0)))
    for storage, pool in zip(both, pools, strict=True):
        on_threads(clock, lambda storage=storage: storage.batch_get_v1(KEYS, slots(8)))
        assert torch.equal(pool.rows[: 8 * PAGE], pool.rows[8 * PAGE :])
    other = backend(Pool(), 0, 1, directory=str(tmp_path))
    ((hit, _),) = on_threads(clock, lambda: other.batch_exists(KEYS))
    assert hit == 0, "another number of ranks: the pages are other shards"


@pytest.mark.parametrize(
    ("fault", "read", "pages"),
    [
        ({"dead_after_pages": 3}, [True] * 3 + [False] * 5, 3),
        ({"dead_after_s": 0.0}, [False] * 8, 0),
        ({"missing": 1.0}, [False] * 8, 0),
        ({"corrupt": 1.0}, [False] * 8, 0),
        ({"corrupt": 1.0, "checksum": False}, [True] * 8, 8),
        ({"slow_factor": 4.0}, [True] * 8, 32),
    ],
)
def test_faults_come_and_go_with_the_control_file(
    clock: VirtualClock, tmp_path: Path, fault: dict[str, Any], read: list[bool], pages: int
) -> None:
    """pages: as many as the call takes on a whole link."""
    control = tmp_path / "control"
    pool = Pool()
    storage = filled(clock, pool, control=str(control))
    pool.rows[8 * PAGE :] = 0
    control.write_text(json.dumps({**fault, "dead_reply_s": 7.0}))
    began = clock.now()
    ((given, end),) = on_threads(clock, lambda: storage.batch_get_v1(KEYS, slots(8)))
    assert given == read
    dead = 7.0 if "dead_after" in str(fault) else 0.0
    assert end - began == pytest.approx(pages * PAGE_BYTES / 1000 + dead)
    landed = pool.rows[8 * PAGE : 16 * PAGE].reshape(8, -1).any(1).tolist()
    assert landed == read, "nothing is put where no page came"
    same = torch.equal(pool.rows[8 * PAGE : 16 * PAGE], pool.rows[: 8 * PAGE])
    assert same == ("slow_factor" in fault)
    if dead:
        writing = on_threads(clock, lambda: storage.batch_set_v1(["new"], slots(0, 1)))
        assert writing[0][0] == [False]
        assert on_threads(clock, lambda: storage.batch_exists(KEYS))[0][0] == 0
    control.unlink()
    ((given, _),) = on_threads(clock, lambda: storage.batch_get_v1(KEYS, slots(8)))
    assert given == [True] * 8


def test_calls_raise(clock: VirtualClock) -> None:
    storage = backend(Pool(), raising=1.0)
    for call in (
        lambda: storage.batch_exists(KEYS),
        lambda: storage.batch_get_v1(KEYS, slots(0)),
        lambda: storage.batch_set_v1(KEYS, slots(0)),
    ):
        with pytest.raises(ConnectionError, match="emulated failure: "):
            call()


def test_on_an_emulated_device_the_bytes_are_its_models(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, make_profile: Callable[[], DeviceProfile]
) -> None:
    class Device:
        profile = make_profile()  # 1,000 bytes per token

    monkeypatch.setattr(emulated_storage, "timing_is_on", lambda: True)
    monkeypatch.setattr(emulated_storage, "the_device", Device)
    storage = filled(clock, Pool())
    began = clock.now()
    ((_, end),) = on_threads(clock, lambda: storage.batch_get_v1(KEYS, slots(8)))
    assert end - began == pytest.approx(8 * PAGE)


def test_the_log_has_a_line_for_every_call(clock: VirtualClock, tmp_path: Path) -> None:
    storage = filled(clock, Pool(), log=str(tmp_path / "log"))
    on_threads(clock, lambda: storage.batch_get_v1(KEYS[:2], slots(8, 2)))
    (path,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["call"] for line in lines] == ["write", "read"]
    assert lines[1]["pages"] == lines[1]["keys"] == 2
    assert lines[1]["end_s"] - lines[1]["asked_s"] == pytest.approx(2 * PAGE_BYTES / 1000)
    assert lines[1]["end_s"] == lines[1]["due_s"], "on a virtual clock no thread wakes late"


def test_the_old_interface_is_refused() -> None:
    wrong = config()
    wrong.extra_config = {"read_gbps": 10}
    with pytest.raises(ValueError, match="interface_v1 of the storage link is None; allowed is 1"):
        EmulatedStorage(wrong, {})


class LayeredPool(Pool):
    """Host memory that keeps a layer of a page in one piece."""

    layer_num = 4

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout, pages = layout, SLOTS // PAGE
        self.size_per_token = 2 * self.layer_num * WIDTH * self.dtype.itemsize
        shape = (2, self.layer_num, SLOTS, WIDTH)
        if layout == "page_first_direct":
            shape = (2, pages, self.layer_num, PAGE, WIDTH)
        self.kv_buffer = torch.randn(shape).to(self.dtype)

    def page(self, slot: int) -> torch.Tensor:
        if self.layout == "layer_first":
            return self.kv_buffer[:, :, slot : slot + PAGE]
        return self.kv_buffer[:, slot // PAGE]

    def get_data_page(self, slot: int, flat: bool) -> torch.Tensor:
        return self.page(slot).flatten()


@pytest.mark.parametrize("layout", ["layer_first", "page_first_direct"])
def test_layers_of_pages_come_in_their_share_of_the_time(clock, layout) -> None:
    pool = LayeredPool(layout)
    storage = filled(clock, pool)
    wanted = [pool.page(slot).clone() for slot in range(0, 8 * PAGE, PAGE)]
    pool.kv_buffer.zero_()
    before = clock.now()
    call = (lambda: storage.batch_get_layers(KEYS, slots(8), 1, 3),)
    ((there, after),) = on_threads(clock, *call)
    assert there == [True] * 8
    page_bytes = PAGE * pool.size_per_token
    assert after - before == pytest.approx(8 * page_bytes / 2 / 1000)
    for number, page in enumerate(wanted):
        found = pool.page((8 + number) * PAGE)
        assert torch.equal(found[:, 1:3], page[:, 1:3])
        assert not found[:, 0].any()
        assert not found[:, 3].any()
