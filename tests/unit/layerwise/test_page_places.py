"""Each page's KV of each layer lies in one place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.engine.layerwise.cells import CellError
from tokenflow_sgl.engine.layerwise.page_places import PagePlaces

LAYERS, PAGES = 3, 8


def made(device: int = 20, host: int = 24) -> PagePlaces:
    return PagePlaces(LAYERS, PAGES, device, host)


def mask(*columns: str) -> np.ndarray:
    """One string for each page: a layer is on the (h)ost or on the (d)evice."""
    return np.array([[letter == "h" for letter in column] for column in columns]).T


def test_a_page_has_a_cell_in_every_layer() -> None:
    places = made()
    places.add(np.array([2, 5]), mask("ddh", "hhh"))
    assert (places.device.used, places.host.used) == (2, 4)
    assert places.on_host(2, np.array([2, 5])).tolist() == [True, True]
    assert places.on_host(0, np.array([2, 5])).tolist() == [False, True]
    assert (places.table[:2, 2] > 0).all()
    assert places.table[2, 2] == 0, "not staged"
    assert places.audit() is None


def test_layers_on_the_host_share_a_staging_cell() -> None:
    places = made()
    pages = np.array([2, 5, 6])
    places.add(pages, mask("ddh", "hhh", "ddd"))
    assert len(places.stage(pages)) == 2
    assert places.staged().tolist() == [2, 5]
    assert len(set(places.table[:, 5])) == 1
    assert places.table[2, 2] not in places.table[:2, 2]
    places.unstage(pages)
    assert (places.table[:, 5] == 0).all()
    assert places.device.used == 5
    assert places.audit() is None


def test_a_change_says_what_to_copy() -> None:
    places = made()
    pages = np.array([1, 2])
    places.add(pages, mask("ddd", "hdd"))
    old = places.table.copy()
    wanted = mask("dhh", "ddd")
    leaves = places.evict(pages, wanted)
    assert leaves.device.tolist() == [old[1, 1], old[2, 1]]
    assert leaves.host.tolist() == [places.host_cells(n, np.array([1]))[0] for n in (1, 2)]
    comes = places.load(pages, wanted)
    assert len(comes) == 1
    assert comes.device.tolist() == [places.table[0, 2]]
    assert len(places.evict(pages, wanted)) == len(places.load(pages, wanted)) == 0
    assert places.audit() is None


def test_pages_that_end_leave_nothing() -> None:
    places = made()
    pages = np.array([1, 2, 3])
    places.add(pages, mask("dhd", "hhh", "ddd"))
    places.stage(pages)
    places.remove(np.array([3, 1, 1, 7]))
    assert places.alive.tolist() == [False, False, True] + [False] * 5
    places.remove(pages)
    assert places.device.used == places.host.used == 0
    assert not places.table.any()


def test_what_does_not_fit_changes_nothing() -> None:
    places = made(device=3, host=2)
    places.add(np.array([1]), mask("ddd"))
    before = places.table.copy()
    for attempt in (
        lambda: places.add(np.array([2]), mask("hhd")),
        lambda: places.add(np.array([2]), mask("hhh")),
        lambda: places.evict(np.array([1]), mask("hhh")),
    ):
        with pytest.raises(CellError):
            attempt()
        assert np.array_equal(places.table, before)
        assert places.audit() is None
    places.evict(np.array([1]), mask("hhd"))
    with pytest.raises(ValueError, match="page 1 is added twice"):
        places.add(np.array([1]), mask("ddd"))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_order_of_changes_keeps_every_cell_in_one_hand(data) -> None:
    places = made(device=LAYERS * PAGES + PAGES)
    masks = st.lists(st.text("dh", min_size=LAYERS, max_size=LAYERS), min_size=PAGES)
    for _ in range(data.draw(st.integers(1, 25))):
        some = np.array(sorted(data.draw(st.sets(st.integers(0, PAGES - 1)))), dtype=np.int64)
        columns = mask(*data.draw(masks)[:PAGES])[:, : some.size]
        alive = places.alive[some]
        match data.draw(st.sampled_from(["add", "change", "stage", "unstage", "remove"])):
            case "add":
                places.add(some[~alive], columns[:, ~alive])
            case "change":
                places.unstage(places.staged())
                places.evict(some[alive], columns[:, alive])
                places.load(some[alive], columns[:, alive])
                for layer in range(LAYERS):
                    on_host = places.on_host(layer, some[alive])
                    assert np.array_equal(on_host, columns[layer, alive])
            case "stage":
                places.unstage(places.staged())
                places.stage(some[alive])
            case "unstage":
                places.unstage(some)
            case "remove":
                places.remove(some)
        assert places.audit() is None
    places.remove(np.arange(PAGES))
    assert places.device.used == places.host.used == 0


def test_an_audit_names_what_is_lost() -> None:
    places = made()
    places.add(np.array([1]), mask("ddd"))
    places.device.take(1)
    assert places.audit() == "the pages have 3 cells of the device, 4 are in use"
