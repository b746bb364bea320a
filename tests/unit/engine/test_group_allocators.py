"""Allocators with block groups keep the promises of SGLang's, under the same random traffic."""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from tokenflow_sgl.engine.kv import group_hooks
from tokenflow_sgl.engine.kv.group_allocators import with_groups
from tokenflow_sgl.engine.kv.group_hooks import pages_of, size_groups
from tokenflow_sgl.engine.kv.stream_pages import StreamPages
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.offload.block_groups import GROUP_TOKENS

TOKENS = 1024
PAGES = (1, 16)


class Request:
    """What is read of one of SGLang's."""

    def __init__(self, prompt: int, limit: int = 64) -> None:
        self.origin_input_ids = array("q", [1] * prompt)
        self.output_ids = array("q")
        self.sampling_params = SimpleNamespace(max_new_tokens=limit)
        self.prefix_len = 0
        self.locs = torch.empty(0, dtype=torch.int64)


def stock(page: int, tokens: int = TOKENS):
    """SGLang's own, on the CPU."""
    if page == 1:
        return TokenToKVPoolAllocator(tokens, torch.float16, "cpu", None, False)
    made = PagedTokenToKVPoolAllocator(tokens, page, torch.float16, "cpu", None, False)
    made.use_triton_kernels = False
    return made


def grouped(page: int, tokens: int = TOKENS):
    made = with_groups(stock(page, tokens))
    made.use_triton_kernels = False
    return made


def extend(allocator, lengths: list[torch.Tensor], counts: list[int], page: int):
    """As SGLang asks for a prefill batch: of streams with these places so far."""
    if page == 1:
        return allocator.alloc(sum(counts))
    before = torch.tensor([len(locs) for locs in lengths])
    after = before + torch.tensor(counts)
    last = torch.tensor([int(locs[-1]) if len(locs) else -1 for locs in lengths])
    return allocator.alloc_extend(before, before, after, after, last, sum(counts))


def decode(allocator, lengths: list[torch.Tensor], page: int):
    """As SGLang asks for a decode step."""
    if page == 1:
        return allocator.alloc(len(lengths))
    after = torch.tensor([len(locs) + 1 for locs in lengths])
    return allocator.alloc_decode(after, after, torch.stack([locs[-1] for locs in lengths]))


class Pair:
    """SGLang's allocator and ours with the same streams; places differ, all else does not."""

    def __init__(self, page: int, told: bool) -> None:
        self.page = page
        self.stock, self.ours = stock(page), grouped(page)
        self.told = told  # ours hears whose pages are asked for
        self.rows: dict[Request, int] = {}
        self.theirs: dict[Request, torch.Tensor] = {}

    def start(self, count: int, tokens: int) -> bool:
        requests = [Request(tokens) for _ in range(count)]
        if not self._extend(requests, [tokens] * count):
            return False
        free = iter(sorted(set(range(64)) - set(self.rows.values())))
        for request in requests:
            self.rows[request] = next(free)
        if self.told:
            rows = np.array([self.rows[each] for each in requests])
            self.ours.pages.bind(requests, rows)
        return True

    def _extend(self, requests: list[Request], counts: list[int]) -> bool:
        theirs = [self.theirs.get(each, torch.empty(0, dtype=torch.int64)) for each in requests]
        expected = extend(self.stock, theirs, counts, self.page)
        lengths = [each.locs for each in requests]
        if self.told:
            with self.ours.pages.extending(requests, counts):
                found = extend(self.ours, lengths, counts, self.page)
        else:
            found = extend(self.ours, lengths, counts, self.page)
        return self._put(requests, counts, expected, found)

    def step(self, requests: list[Request]) -> bool:
        expected = decode(self.stock, [self.theirs[each] for each in requests], self.page)
        lengths = [each.locs for each in requests]
        if self.told:
            rows = np.array([self.rows[each] for each in requests])
            with self.ours.pages.decoding(rows):
                found = decode(self.ours, lengths, self.page)
        else:
            found = decode(self.ours, lengths, self.page)
        return self._put(requests, [1] * len(requests), expected, found)

    def _put(self, requests, counts, expected, found) -> bool:
        assert (expected is None) == (found is None)
        if found is None:
            return False
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        pairs = zip(requests, found.split(counts), expected.split(counts), strict=True)
        for request, ours, theirs in pairs:
            request.locs = torch.cat([request.locs, ours])
            before = self.theirs.get(request, torch.empty(0, dtype=torch.int64))
            self.theirs[request] = torch.cat([before, theirs])
        return True

    def end(self, request: Request) -> None:
        locs, theirs = request.locs, self.theirs.pop(request)
        for allocator, each in ((self.stock, theirs), (self.ours, locs)):
            # In two pieces, and in one of SGLang's groups of frees.
            half = len(each) // 2 // self.page * self.page
            allocator.free_group_begin()
            allocator.free_segments([(each[:half], 0), (each[half:], half)])
            allocator.free_group_end()
        if self.told:
            self.ours.pages.released(request)
        del self.rows[request]

    def check(self) -> None:
        assert self.stock.available_size() == self.ours.available_size()
        free = self.ours.get_all_free_pages()
        assert len(free) == len(self.stock.get_all_free_pages())
        used = [loc for each in self.rows for loc in each.locs.tolist()]
        assert len(set(used)) == len(used)
        assert not set(free.tolist()) & {loc // self.page for loc in used}
        for each in self.rows:
            places = torch.arange(len(each.locs)) % self.page
            assert torch.equal(each.locs % self.page, places)
            assert (each.locs >= self.page).all(), "page 0 is for padding"


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
@pytest.mark.parametrize("page", PAGES)
def test_random_traffic_has_the_same_free_counts_and_the_same_failures(page, told) -> None:
    chance = random.Random(page)
    pair = Pair(page, told)
    failures = 0
    for _ in range(600):
        what = chance.random()
        running = list(pair.rows)
        if what < 0.25 and len(running) < 60:
            failures += not pair.start(chance.randrange(1, 4), chance.randrange(1, 90))
        elif what < 0.85 and running:
            failures += not pair.step(chance.sample(running, chance.randrange(1, len(running) + 1)))
        elif running:
            pair.end(chance.choice(running))
        pair.check()
    assert failures > 5, "memory must have run short"
    for request in list(pair.rows):
        pair.end(request)
    assert pair.ours.available_size() == TOKENS


def runs(locs: torch.Tensor) -> int:
    return 1 + int((locs.diff() != 1).sum())


def test_streams_that_decode_together_are_written_in_few_runs() -> None:
    """The point of it all, page 1; not told, as SGLang's own, they are torn to single tokens."""
    torn, whole = Pair(1, told=False), Pair(1, told=True)
    for pair in (torn, whole):
        pair.start(4, 50)
        for _ in range(60):
            pair.step(list(pair.rows))
    assert [runs(each.locs) for each in whole.rows] == [1, 1, 1, 1]
    assert {runs(each.locs) for each in torn.rows} == {61}


@pytest.mark.parametrize("page", PAGES)
def test_what_is_loaded_goes_on_in_the_same_run(page) -> None:
    ours, request = grouped(page), Request(64)
    ours.alloc(2 * page)
    with ours.pages.loading(request):
        loaded = ours.alloc(64)
    ours.alloc(2 * page)
    request.locs, request.prefix_len = loaded, 64
    with ours.pages.extending([request], [8]):
        more = extend(ours, [loaded], [8], page)
    assert runs(torch.cat([loaded, more])) == 1


def test_the_hooks_say_whose_pages_are_asked_for() -> None:
    """Around functions that allocate as SGLang's do, which know nothing of streams."""
    ours = group_hooks._built(stock(1))
    tree = SimpleNamespace(token_to_kv_pool_allocator=ours)
    one, two = Request(100), Request(100)

    def alloc_for_extend(batch):
        places = ours.alloc(sum(batch.extend_lens))
        for request, found in zip(batch.reqs, places.split(batch.extend_lens), strict=True):
            request.locs = torch.cat([request.locs, found])
        return places, None, batch.req_pool_indices_cpu

    def alloc_for_decode(batch, token_per_req):
        for request, found in zip(batch.reqs, ours.alloc(len(batch.reqs)).split(1), strict=True):
            request.locs = torch.cat([request.locs, found])

    def init_load_back(_tree, params):
        params.req.locs = torch.cat([params.req.locs, ours.alloc(50)])

    group_hooks._load(init_load_back, tree, SimpleNamespace(req=two))
    two.prefix_len = 50
    batch = SimpleNamespace(
        tree_cache=tree,
        reqs=[one, two],
        extend_lens=[100, 50],
        req_pool_indices_cpu=torch.tensor([4, 2]),
    )
    group_hooks._extend(alloc_for_extend, batch)
    for _ in range(10):
        group_hooks._decode(alloc_for_decode, batch, token_per_req=1)
    assert [runs(each.locs) for each in (one, two)] == [1, 1]
    assert len(one.locs) == len(two.locs) == 110
    owner = ours.pages._owner(one)
    assert ours.pages._book.set_aside(owner) > 0
    group_hooks._released(None, tree, one, checkpointed=True)
    assert ours.pages._book.set_aside(owner) == 0


def test_rows_without_a_stream_have_pages_too() -> None:
    """Those of a beam, for example."""
    ours, request = grouped(1), Request(10)
    with ours.pages.extending([request], [10]):
        ours.alloc(10)
    ours.pages.bind([request], np.array([3]))
    with ours.pages.decoding(np.array([7, 3, 900])):
        places = ours.alloc(3).tolist()
    assert len(set(places)) == 3
    assert places[1] == 11


def test_a_row_that_another_stream_takes_over_is_no_longer_the_first_ones() -> None:
    ours = grouped(1)
    first, second = Request(4), Request(4)
    for request in (first, second):
        with ours.pages.extending([request], [4]):
            ours.alloc(4)
        ours.pages.bind([request], np.array([0]))
    ours.pages.bind([first], np.array([1]))
    with ours.pages.decoding(np.array([0, 1])):
        assert len(set(ours.alloc(2).tolist())) == 2


def test_requests_that_are_gone_leave_nothing_behind() -> None:
    ours = grouped(1)
    for _ in range(50):
        request = Request(4)
        with ours.pages.extending([request], [4]):
            places = ours.alloc(4)
        ours.free(places)
        del request
    assert ours.pages._owners == 1
    assert ours.available_size() == TOKENS


class Distant(StreamPages):
    """As on a GPU: the numbers of freed pages are there only once their copy is waited for."""

    def __init__(self, pages: int) -> None:
        super().__init__(pages, 1, "meta")
        self.waits = 0

    def _to_host(self, pages):
        numbers = torch.zeros_like(pages)

        def arrive() -> None:
            self.waits += 1
            numbers.copy_(pages)

        return numbers, SimpleNamespace(synchronize=arrive)

    def _to_device(self, pages):
        return torch.from_numpy(pages)


def test_pages_that_are_on_their_way_to_the_book_are_available() -> None:
    pages, request = Distant(20), Request(4, limit=8)
    with pages.extending([request], [4]):
        pages.take(np.array([4]))
    pages.bind([request], np.array([0]))
    loose = pages.take(np.array([16]))
    pages.give(loose[:10])
    assert (pages.available, pages.waits) == (10, 0)
    assert pages.take(np.array([11])) is None
    with pages.decoding(np.array([0])):  # all that is known to be free was taken
        assert pages.take(np.array([1])) is not None
    assert pages.waits == 1
    pages.give(loose[10:12])
    pages.give(loose[12:14])
    for waits in (1, 3):  # a step later
        with pages.decoding(np.array([0])):
            pages.take(np.array([1]))
        assert pages.waits == waits
    pages.give(loose[14:])
    assert len(pages.free_pages()) == pages.available == 13
    assert pages.waits == 4


def test_groups_are_as_large_as_what_the_answer_is_expected_to_have() -> None:
    ours, request = grouped(1), Request(4, limit=500)
    other = Request(4, limit=500)

    class Table(dict):
        readers = SimpleNamespace(expected_tokens=[40])
        thinking, reasoning = [True], [0]

        def slot(self, request):
            return self[request]

    size_groups(ours, Table({request: 0}))
    left = ours.pages.tokens_left
    assert (left(request), left(other)) == (40, 500)
    request.output_ids.extend([1] * 30)
    assert left(request) == 10
    Table.thinking, Table.reasoning = [False], [25]
    assert left(request) == 35, "of its text; what it thought is not expected again"
    Table.reasoning = [0]
    request.output_ids.extend([1] * 30)
    assert left(request) == 60, "longer than expected: as long again"
    request.output_ids.extend([1] * 430)
    assert left(request) == 10, "its limit"
    ours.clear()
    assert ours.pages.tokens_left is left
    assert GROUP_TOKENS > 500


def test_other_allocators_are_refused_with_their_name() -> None:
    class Other(TokenToKVPoolAllocator):
        pass

    other = Other(16, torch.float16, "cpu", None, False)
    with pytest.raises(UnsupportedError, match="does not work with SGLang's Other on this device"):
        with_groups(other)
    with pytest.raises(RuntimeError, match=r"could not put its allocator in place: it is .*Other"):
        pages_of(other)
