"""How copies are issued, and what that costs, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenflow_sgl.choices import IoBackend, MemLayout
from tokenflow_sgl.lab.profiles import DeviceProfile, Link, PieceCosts, Pieces, ProfileError
from tokenflow_sgl.lab.profiles.pieces import (
    ESTIMATED,
    GATHERED,
    HOPPER,
    LAYOUTS,
    NO_PIECE_COSTS,
    host_layout,
    load_pieces,
    store_pieces,
)

LINK = Link(bandwidth=25e9, latency=10e-6)
KERNEL, DIRECT = IoBackend.kernel, IoBackend.direct
EVERY = [(backend, layout) for backend, layouts in LAYOUTS.items() for layout in layouts]


def stored(backend: IoBackend, layout: MemLayout, page_bytes: float = 131_072.0) -> Pieces:
    return store_pieces(backend, layout, layers=32, pages=100, runs=7, page_bytes=page_bytes)


@pytest.mark.parametrize(("backend", "layout"), EVERY)
def test_where_nothing_is_known_a_copy_is_its_bytes(
    backend: IoBackend, layout: MemLayout, small: DeviceProfile
) -> None:
    issued = stored(backend, layout)
    assert NO_PIECE_COSTS.seconds(LINK, 1e6, issued) == LINK.seconds(1e6)
    assert small.store_seconds(500, issued) == 2e-3 + 500 * 1000 / 5e8
    # With costs it is more, but where a kernel gathers.
    costs = PieceCosts(call=1e-6, set_up=1e-6)
    slower = costs.seconds(LINK, 1e6, issued) > LINK.seconds(1e6)
    assert slower == (issued != GATHERED)


def test_a_kernel_gathers_whatever_lies_where() -> None:
    for layout in LAYOUTS[KERNEL]:
        assert load_pieces(KERNEL, layout, layers=32, pages=100, runs=7) == GATHERED
    assert stored(KERNEL, MemLayout.layer_first) == GATHERED
    assert stored(KERNEL, MemLayout.page_head) == GATHERED
    # Not above its own rate, nor the link's.
    assert PieceCosts(gather=10e9).seconds(LINK, 1e9, GATHERED) == pytest.approx(10e-6 + 0.1)
    assert PieceCosts(gather=99e9).seconds(LINK, 1e9, GATHERED) == pytest.approx(10e-6 + 0.04)


def test_packed_pages_are_two_pieces_each() -> None:
    # 100 pages of one token of Llama-3.1-8B: K has 64 KiB, too little for a call with several.
    assert stored(KERNEL, MemLayout.page_first) == Pieces(calls=200, pieces=200)
    # Pages of two tokens: 64 in the first call, 36 in the second.
    assert stored(KERNEL, MemLayout.page_first, 262_144.0) == Pieces(calls=2, pieces=200)
    assert stored(KERNEL, MemLayout.page_first, 262_143.0).calls == 200


def test_direct_copies_pages_in_one_call_and_runs_one_by_one() -> None:
    pages = MemLayout.page_first_direct
    assert load_pieces(DIRECT, pages, layers=1, pages=100, runs=7) == Pieces(1, 200)
    assert load_pieces(DIRECT, pages, layers=32, pages=100, runs=7) == Pieces(32, 6400)
    assert stored(DIRECT, pages) == Pieces(1, 6400)
    runs = MemLayout.layer_first
    assert load_pieces(DIRECT, runs, layers=1, pages=100, runs=7) == Pieces(14, 14)
    assert stored(DIRECT, runs) == Pieces(448, 448)


def test_the_slower_of_cpu_and_copy_engine_decides() -> None:
    costs = PieceCosts(call=5e-6, set_up=1e-6)
    # 100 calls take 0.5 ms, 100 pieces of 25 KB 0.1 + 0.1 ms.
    assert costs.seconds(LINK, 2.5e6, Pieces(100, 100)) == pytest.approx(10e-6 + 0.5e-3)
    # One call for all: the copy engine.
    assert costs.seconds(LINK, 2.5e6, Pieces(1, 100)) == pytest.approx(10e-6 + 0.2e-3)
    # Fewer, larger pieces of as many bytes never take longer.
    times = [costs.seconds(LINK, 2.5e6, Pieces(count, count)) for count in (1, 10, 100, 1000)]
    assert times == sorted(times) and times[0] < times[-1]


def test_the_estimate_has_its_knee_where_fastswitch_has_it() -> None:
    def rate(n_bytes: float) -> float:
        return n_bytes / (ESTIMATED.seconds(replace(LINK, latency=0.0), n_bytes, Pieces(1, 1)))

    assert rate(320e3) / LINK.bandwidth == pytest.approx(0.9, abs=0.01)
    assert rate(32e3) / LINK.bandwidth < 0.25


def test_layouts_are_resolved_as_sglang_does() -> None:
    assert host_layout(DIRECT, MemLayout.page_first) is MemLayout.page_first_direct
    assert host_layout(KERNEL, MemLayout.page_first) is MemLayout.page_first


@pytest.mark.parametrize(
    ("piece", "each", "one_graph", "one_call"),
    [
        (2048, 0.57e9, 0.78e9, 32.0e9),
        (16384, 4.5e9, 5.5e9, 49.4e9),
        (131072, 25.8e9, 25.9e9, 55.3e9),
        (8388608, 54.4e9, 54.4e9, 55.4e9),
    ],
)
def test_measured_costs_give_the_rates_that_were_measured(
    piece: int, each: float, one_graph: float, one_call: float
) -> None:
    link, count = Link(bandwidth=55.4e9, latency=0.0), 5000

    def rate(issued: Pieces, costs: PieceCosts = HOPPER) -> float:
        return count * piece / costs.seconds(link, count * piece, issued)

    assert rate(Pieces(count, count)) == pytest.approx(each, rel=0.07)
    assert rate(Pieces(1, count)) == pytest.approx(one_call, rel=0.06)
    # Without the CPU's calls.
    graph = rate(Pieces(count, count), replace(HOPPER, call=0.0))
    assert graph == pytest.approx(one_graph, rel=0.06)


@pytest.mark.parametrize("name", ["call", "between", "set_up", "gather"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_refuses_costs_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ProfileError, match=f"pieces: {name} is .*; allowed is 0 or more"):
        PieceCosts(**{name: value})
