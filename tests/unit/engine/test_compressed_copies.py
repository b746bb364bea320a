"""What is copied of a stream of DeepSeek V4, in pools that SGLang describes itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.deepseek_v4_compress_state import KVAndScore
from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

from tokenflow_sgl.engine.decode_server.compressed_copies import (
    check_copies,
    copy_with,
    give_back,
    keep,
    parts_of,
)
from tokenflow_sgl.engine.refusal import UnsupportedError

PAGE, PAGES, WINDOW_PAGES, ROWS, WINDOW = 256, 8, 6, 3, 128
PIECES = 4
"""Of a page of the window in its buffer, as with some cards."""


def rows_of(buffers: int, pages: int, width: int, page: int) -> Any:
    kept = [torch.zeros(pages, width, dtype=torch.uint8) for _ in range(buffers)]
    return SimpleNamespace(kv_buffer=kept, page_size=page, contiguous_page_row_buffers=lambda: kept)


def states_of(ratio: int, owners: int, ring: int) -> Any:
    return SimpleNamespace(
        ratio=ratio,
        ring_size=ring,
        request_scoped=ratio == 128,
        online_mtp_max_draft_tokens=0,
        kv_score_buffer=KVAndScore(torch.zeros(owners * ring, 4)),
    )


@pytest.fixture
def pool() -> Any:
    """As SGLang's, with little in a row: a layer of windows, two of groups of 4, one of 128."""
    made = object.__new__(DeepSeekV4TokenToKVPool)
    made.page_size = made.swa_page_size = PAGE
    made.sliding_window, made.request_window, made._unified_kv = WINDOW, None, False
    made.compression_ratios, made._stage_start, made._stage_end = [0, 4, 128, 4], 0, 4
    made.kv_pools = {4: rows_of(2, PAGES, 7, 64), 128: rows_of(1, PAGES, 5, 2)}
    made.index_pools = {4: rows_of(2, PAGES, 3, 64)}
    made.swa_kv_pool = rows_of(4, WINDOW_PAGES * PIECES, 6, PAGE // PIECES)
    short = [states_of(4, WINDOW_PAGES, 8) for _ in range(4)]
    made.compress_state_pools = [None, short[0], states_of(128, ROWS, 128), short[1]]
    made.indexer_compress_state_pools = [None, short[2], None, short[3]]
    made.register_mapping(torch.zeros(PAGES * PAGE, dtype=torch.int64))
    return made


@pytest.fixture
def drafts(pool) -> Any:
    """As that of a layer for drafts: a window in the places of the target's, and no groups."""
    made = object.__new__(DeepSeekV4TokenToKVPool)
    made.page_size = made.swa_page_size = PAGE
    made.sliding_window, made.request_window, made._unified_kv = WINDOW, None, False
    made._unified_kv_fp8 = False
    made.compression_ratios, made._stage_start, made._stage_end = [0], 0, 1
    made.kv_pools, made.index_pools = {4: None, 128: None}, {}
    made.swa_kv_pool = rows_of(1, WINDOW_PAGES * PIECES, 6, PAGE // PIECES)
    made.compress_state_pools, made.indexer_compress_state_pools = [None], [None]
    made.register_mapping(pool.full_to_swa_index_mapping)
    return made


def places(pool: Any, pages: list[int], window: list[int], count: int) -> torch.Tensor:
    """Places of `count` tokens in these pages, the last of which have these pages of windows."""
    within = torch.arange(PAGE)
    for page, other in zip(pages[len(pages) - len(window) :], window, strict=True):
        pool.full_to_swa_index_mapping[page * PAGE + within] = other * PAGE + within
    found = torch.cat([page * PAGE + within for page in pages])
    return found[:count].to(torch.int32)


def filled(pool: Any) -> list[torch.Tensor]:
    """Each part, with bytes that are not those of another place."""
    generator = torch.Generator().manual_seed(3)
    for part in parts_of(pool):
        part.buffer.random_(0, 256, generator=generator)
    return [part.buffer.clone() for part in parts_of(pool)]


def test_all_that_a_stream_has_goes_and_comes_back(pool) -> None:
    count = 2 * PAGE + 30  # its window reaches into the page before the last
    before = filled(pool)
    kept = keep(pool, places(pool, [5, 1, 7], [2, 4], count), req_pool_index=1)
    for part in parts_of(pool):
        part.buffer.zero_()
    give_back(pool, kept, places(pool, [2, 3, 6], [1, 5], count), req_pool_index=2)
    numbers: dict[str, tuple[list[int], list[int]]] = {
        "page": ([5, 1, 7], [2, 3, 6]),
        "window page": ([2, 4], [1, 5]),
        "request": ([1], [2]),
    }
    for part, old in zip(parts_of(pool), before, strict=True):
        from_, to = numbers[part.owner]
        now, then = (each.view(-1, part.rows, each.shape[1]) for each in (part.buffer, old))
        assert torch.equal(now[to], then[from_])
        others = [number for number in range(len(now)) if number not in to]
        assert not now[others].any(), "nothing else is written"


@pytest.mark.parametrize(
    ("count", "pages"),
    [(1, 1), (WINDOW, 1), (PAGE, 1), (PAGE + WINDOW - 1, 2), (PAGE + WINDOW, 1), (2 * PAGE, 1)],
)
def test_of_the_window_as_many_pages_as_its_tokens_are_in(pool, count, pages) -> None:
    """As SGLang allocates them: a window that begins with a page is in one."""
    filled(pool)
    numbers = [3, 4][: -(-count // PAGE)]
    kept = keep(pool, places(pool, numbers, [3, 4][-pages:], count), req_pool_index=0)
    copied = zip(parts_of(pool), kept, strict=True)
    found = {part.owner: len(rows) // part.rows for part, rows in copied}
    assert found == {"page": len(numbers), "window page": pages, "request": 1}


def test_a_window_that_is_not_there_whole_is_a_mistake(pool) -> None:
    indices = places(pool, [5, 1], [2], PAGE + 30)
    with pytest.raises(AssertionError, match="row 1 lacks pages of its window"):
        keep(pool, indices, req_pool_index=1)


def test_what_is_copied_is_what_sglang_sends(pool) -> None:
    check_copies(pool)
    assert len(parts_of(pool)) == 2 + 1 + 2 + 4 + 4 + 1


@pytest.mark.parametrize("owner", ["page", "window page", "request"])
def test_pools_of_another_make_are_refused(pool, owner) -> None:
    match owner:
        case "page":
            pool.kv_pools[4].kv_buffer.append(torch.zeros(PAGES, 7, dtype=torch.uint8))
            pool.get_contiguous_buf_infos = lambda: ([1, 2], [0, 0], [7, 7])
        case "window page":
            pool.compress_state_pools[1].ring_size = 16
            pool.get_state_buf_infos = lambda: ([1], [0], [7])
        case "request":
            pool.get_request_state_buf_infos = lambda: ([], [], [])
    with pytest.raises(UnsupportedError, match=f"per {owner} SGLang sends"):
        check_copies(pool)


def test_the_window_of_the_layer_for_drafts_goes_and_comes_back_too(pool, drafts) -> None:
    copy_with(pool, drafts)
    filled(pool)
    (before,) = filled(drafts)
    count = 2 * PAGE + 30
    kept = keep(pool, places(pool, [5, 1, 7], [2, 4], count), req_pool_index=1)
    drafts.swa_kv_pool.kv_buffer[0].zero_()
    give_back(pool, kept, places(pool, [2, 3, 6], [1, 5], count), req_pool_index=2)
    now, then = (each.view(-1, PIECES, 6) for each in (drafts.swa_kv_pool.kv_buffer[0], before))
    assert torch.equal(now[[1, 5]], then[[2, 4]])
    assert not now[[0, 2, 3, 4]].any(), "nothing else is written"


def test_with_drafts_a_request_has_places_for_two_groups(pool, drafts) -> None:
    """SGLang sends one of them, and all are copied."""
    pool.compress_state_pools[2] = states_of(128, ROWS, 256)
    copy_with(pool, drafts)
    pool.compress_state_pools[2] = states_of(128, ROWS, 512)
    with pytest.raises(UnsupportedError, match="per request SGLang sends"):
        copy_with(pool, drafts)


def test_what_drafts_add_is_looked_at_as_well(pool, drafts) -> None:
    drafts.get_state_buf_infos = lambda: ([1], [0], [7])
    with pytest.raises(UnsupportedError, match="per window page SGLang sends 1 buffers"):
        copy_with(pool, drafts)


def test_states_that_take_drafts_in_later_are_refused(pool, drafts) -> None:
    pool.compress_state_pools[2].online_mtp_max_draft_tokens = 4
    with pytest.raises(UnsupportedError, match="SGLANG_EXPERIMENTAL_ONLINE_C128_MTP"):
        copy_with(pool, drafts)
