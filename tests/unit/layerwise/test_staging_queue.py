"""Copies go by the layer that waits for them, and one group has one under way."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.engine.layerwise.staging_queue import StagingQueue


def pages(first: int, number: int) -> np.ndarray:
    return np.arange(first, first + number)


def shown(fetches) -> list[tuple[int, list[int]]]:
    return [(each.layer, each.pages.tolist()) for each in fetches]


def test_all_goes_ahead_in_the_order_of_layers() -> None:
    queue = StagingQueue([((3, 5), pages(0, 2)), ((1, 2), pages(10, 3)), ((), pages(20, 0))])
    assert shown(queue.ahead()) == [(1, [10, 11, 12]), (3, [0, 1])]
    assert queue.ahead() == queue.due(1) == []


def test_the_next_copy_of_a_group_waits_until_its_layer_is_done() -> None:
    queue = StagingQueue([((1, 2), pages(0, 2))])
    queue.ahead()
    queue.done(0)
    assert queue.ahead() == []
    queue.done(1)
    assert shown(queue.ahead()) == [(2, [0, 1])]
    queue.done(2)
    assert queue.ahead() == queue.due(2) == []


def test_what_the_link_has_no_time_for_is_due_later() -> None:
    queue = StagingQueue([((2,), pages(0, 3)), ((1,), pages(10, 3))])
    assert shown(queue.ahead(4)) == [(1, [10, 11, 12]), (2, [0])]
    assert queue.ahead(0) == queue.due(1) == []
    assert shown(queue.due(2)) == [(2, [1, 2])]


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 5)), st.integers(0, 4)), max_size=5),
    st.lists(st.integers(0, 6), min_size=6, max_size=6),
)
def test_every_page_is_fetched_once_for_each_of_its_layers_and_in_time(groups, budgets) -> None:
    given_ = [
        (tuple(sorted(layers)), pages(10 * n, number)) for n, (layers, number) in enumerate(groups)
    ]
    queue = StagingQueue(given_)
    fetched = []
    for layer, budget in enumerate(budgets):
        for each in queue.due(layer):
            assert each.layer == layer
            fetched += [(layer, page) for page in each.pages.tolist()]
        ahead = queue.ahead(budget)
        assert [each.layer for each in ahead] == sorted(each.layer for each in ahead)
        assert sum(each.pages.size for each in ahead) <= budget
        fetched += [(each.layer, page) for each in ahead for page in each.pages.tolist()]
        wanted = {(layer, page) for layers, own in given_ for page in own if layer in layers}
        assert wanted <= {*fetched}
        queue.done(layer)
    every = [(layer, page) for layers, own in given_ for layer in layers for page in own.tolist()]
    assert sorted(fetched) == sorted(every)
