"""Copies on a GPU, with a stand-in for CUDA: which bytes, in which order, and after what."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_up_cuda import Cuda

from tokenflow_sgl.engine.layerwise import batched_copies, kv_on_both_sides
from tokenflow_sgl.engine.layerwise.batched_copies import (
    BatchedCopyError,
    copy_batch,
    has_batched_copies,
    merged,
)
from tokenflow_sgl.engine.layerwise.cuda_copier import CudaCopier
from tokenflow_sgl.engine.layerwise.kv_on_both_sides import CellShape, KvOnBothSides
from tokenflow_sgl.engine.layerwise.start_check import StartCheckError, check_copies

PAGE, HEADS, WIDTH, VALUE_WIDTH = 4, 2, 8, 6


@pytest.fixture
def use(monkeypatch):
    def use(**given) -> Cuda:
        cuda = Cuda(**given)
        for name in ("Event", "current_stream", "cudart"):
            monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
        monkeypatch.setattr(batched_copies, "runtime", cuda)
        monkeypatch.setattr(kv_on_both_sides.torch, "get_device_module", lambda _: cuda)
        return cuda

    return use


def memory(page: int = PAGE) -> KvOnBothSides:
    return KvOnBothSides(
        9,
        12,
        CellShape(page, (HEADS, WIDTH), (HEADS, VALUE_WIDTH), torch.bfloat16),
        device="cpu",
        copier=CudaCopier(),
    )


def cells(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_pieces_that_follow_each_other_on_both_sides_are_one() -> None:
    device, host, lengths = merged(cells(12, 4, 8, 24, 20, 0), cells(28, 20, 24, 0, 40, 60), 4)
    assert device.tolist() == [0, 4, 20, 24]
    assert host.tolist() == [60, 20, 40, 0]
    assert lengths.tolist() == [4, 12, 4, 4]
    for pieces in (1, 7):
        one = np.arange(pieces) * 3
        assert [each.tolist() for each in merged(one[::-1], one[::-1], 3)] == [
            [0],
            [0],
            [pieces * 3],
        ]


@pytest.mark.parametrize("seed", range(20))
def test_merged_pieces_are_the_same_bytes(seed) -> None:
    numbers = np.random.default_rng(seed)
    count, length = int(numbers.integers(1, 30)), int(numbers.integers(1, 5))
    device, host = (np.sort(numbers.choice(40, count, replace=False)) * length for _ in range(2))
    order = numbers.permutation(count)
    pairs = set()
    for a, b, size in zip(*merged(device[order], host[order], length), strict=True):
        pairs |= {(a + at, b + at) for at in range(size)}
    every = np.arange(length)
    expected = zip((device[:, None] + every).flat, (host[:, None] + every).flat, strict=True)
    assert pairs == set(expected)


@pytest.mark.parametrize("old", [True, False])
def test_what_cuda_refuses_is_an_error(use, old) -> None:
    """CUDA 12 also returns which piece it was."""
    use(error="cudaErrorInvalidValue", old=old)
    assert has_batched_copies()
    with pytest.raises(BatchedCopyError, match="of 2 pieces: cudaErrorInvalidValue"):
        copy_batch([1, 2], [3, 4], [0, 0], 7)


@pytest.mark.parametrize("runtime", [None, SimpleNamespace()])
def test_without_the_package_or_with_an_old_one_there_are_none(monkeypatch, runtime) -> None:
    monkeypatch.setattr(batched_copies, "runtime", runtime)
    assert not has_batched_copies()


def test_cells_and_tokens_go_there_and_back(use) -> None:
    cuda = use(old=True)
    made = memory()
    made.key.normal_()
    made.value.normal_()
    before = [arena.clone() for arena in (made.key, made.value)]
    made.to_host(cells(3, 2, 7), cells(5, 4, 1))
    [(_, pieces)] = cuda.calls
    token = HEADS * 2  # bytes for each number of the width, in bfloat16
    assert [size for *_, size in pieces] == [
        *(2 * PAGE * token * WIDTH, PAGE * token * WIDTH),
        *(2 * PAGE * token * VALUE_WIDTH, PAGE * token * VALUE_WIDTH),
    ]
    made.tokens_to_host(cells(6 * PAGE + 1), cells(12 * PAGE + 3))
    for arena in (made.key, made.value):
        arena.zero_()
    made.to_device(cells(1, 9, 4, 5), cells(4, 5, 1, 12), None)
    for arena, old in zip((made.key, made.value), before, strict=True):
        now, then = (each.unflatten(0, (-1, PAGE)) for each in (arena, old))
        assert torch.equal(now[[1, 9, 4]], then[[2, 3, 7]])
        assert torch.equal(now[5, 3], then[6, 1])
        assert not now[[2, 3, 6, 7, 8]].any()


def test_nothing_to_copy_is_no_call(use) -> None:
    cuda = use()
    made = memory()
    made.to_host(cells(), cells())
    assert not cuda.calls


def test_the_hosts_memory_is_pinned_as_it_is(use) -> None:
    cuda = use()
    made = memory()
    assert [size for _, size in cuda.registered] == [
        13 * PAGE * HEADS * width * 2 for width in (WIDTH, VALUE_WIDTH)
    ]
    assert made.key.shape == (10 * PAGE, HEADS, WIDTH)


def test_a_host_that_does_not_pin_ends_the_start(use) -> None:
    cuda = use()
    cuda.register_error = 2
    with pytest.raises(RuntimeError, match=r"could not be pinned \(CUDA error 2\).*ratio"):
        memory()


def test_each_copy_waits_for_what_was_computed_and_for_nothing_else(use) -> None:
    cuda = use(late=True)
    made = memory()
    out = made.to_host(cells(1), cells(1))
    into = made.to_device(cells(2), cells(3), None)
    again = made.to_device(cells(4), cells(1), out)
    (store, _), (load, _), (later, _) = cuda.calls
    assert store is not load
    assert load is later
    assert cuda.main not in (store, load)
    assert [kind for kind, _ in store.jobs] == ["wait", "copy"]
    assert [kind for kind, _ in load.jobs] == ["wait", "copy", "wait", "wait", "copy"]
    assert load.jobs[2] == ("wait", (store.name, 2)), "the cell has to be on the host"
    assert cuda.main.jobs == []
    made.wait(into)
    assert cuda.main.jobs == [("wait", (load.name, 2))]
    made.wait(again)
    assert cuda.main.jobs[1] == ("wait", (load.name, 5))
    assert load.jobs[3] == ("wait", (cuda.main.name, 0))
    made.to_host(cells(5), cells(6))
    assert store.jobs[2] == ("wait", (cuda.main.name, 2)), "after what was waited for"


def test_copies_that_land_late_are_waited_for(use) -> None:
    cuda = use(late=True)
    made = memory()
    made.key.normal_()
    before = made.key.clone()
    stored = made.to_host(cells(1, 2), cells(7, 8))
    loaded = made.to_device(cells(5, 6), cells(7, 8), stored)
    assert not torch.equal(made.key[5 * PAGE : 7 * PAGE], before[PAGE : 3 * PAGE])
    made.wait(loaded)
    cuda.run()
    assert torch.equal(made.key[5 * PAGE : 7 * PAGE], before[PAGE : 3 * PAGE])


def test_moments_tell_the_time(use) -> None:
    use()
    made = memory()
    ticket = made.to_host(cells(1), cells(1))
    assert made.seconds(ticket.begin, ticket.end) == 0.25
    assert made.seconds(made.moment(), made.moment()) == 0.25


@pytest.mark.parametrize("page", [1, 4])
def test_the_check_at_start_leaves_nothing_behind(use, page) -> None:
    use()
    made = memory(page)
    check_copies(made, page)
    assert not made.key.any()
    assert not made.value.any()


@pytest.mark.parametrize(("lost", "what"), [(0, "cells"), (1, "cells"), (2, "new tokens")])
def test_the_check_at_start_notices_a_copy_that_is_none(use, monkeypatch, lost, what) -> None:
    cuda = use()
    copy, calls = cuda.cudaMemcpyBatchAsync, []

    def some(*given):
        calls.append(given)
        return ("cudaSuccess",) if len(calls) == lost + 1 else copy(*given)

    monkeypatch.setattr(cuda, "cudaMemcpyBatchAsync", some)
    with pytest.raises(StartCheckError, match=f"copies of {what} to the host and back"):
        check_copies(memory(), PAGE)
