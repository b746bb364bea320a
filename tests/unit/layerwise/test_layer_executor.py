"""Whatever moves between steps, each layer reads its KV, and nothing leaks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layerwise_body import MadeUpEngine, RandomLayouts, switches_of

from tokenflow_sgl.engine.layerwise.even_spread import EvenSpread
from tokenflow_sgl.engine.layerwise.layer_executor import LayerExecutor
from tokenflow_sgl.engine.layerwise.layer_plans import StreamsInStep
from tokenflow_sgl.placement import every


class Fixed:
    """A layout for each row."""

    def __init__(self, **layouts) -> None:
        self.of = {int(key[1:]): value for key, value in layouts.items()}

    def layouts(self, streams):
        return [self.of.get(row, ()) for row in streams.rows.tolist()]


class Asked(Fixed):
    """Notes what it was shown."""

    def __init__(self, **layouts) -> None:
        super().__init__(**layouts)
        self.seen: list[StreamsInStep] = []

    def layouts(self, streams):
        self.seen.append(streams)
        return super().layouts(streams)


def random_operations(engine: MadeUpEngine, chance: random.Random, number: int) -> None:
    for _ in range(number):
        rows = list(engine.streams)
        if chance.random() < 0.2:  # paused ones are in no step, but for those that are resumed
            engine.executor.plans.paused = frozenset(
                chance.sample(rows, chance.randint(0, len(rows)))
            )
        what = chance.random()
        if not rows or (what < 0.08 and len(rows) < 12):
            engine.arrive(chance.choice([None, *engine.kept]))
        elif what < 0.14:
            engine.end(chance.choice(rows))  # finished, retracted or aborted: alike
        elif what < 0.2:
            engine.keep(chance.choice(rows))
        elif what < 0.26 and engine.kept:
            engine.forget(chance.choice(engine.kept))
        else:
            chosen = chance.sample(rows, chance.randint(1, len(rows)))
            kind = chance.random()
            new = {}
            for row in chosen:
                fresh = not engine.streams[row].places
                chunk = chance.randint(1, 40)
                # A chunk of a prompt, tokens one by one, or both in one step.
                new[row] = chunk if fresh or kind < 0.15 else 1
            if not engine.step(new):
                engine.end(chance.choice(rows))
                if engine.kept:
                    engine.forget(chance.choice(engine.kept))


def assert_nothing_left(engine: MadeUpEngine) -> None:
    for row in list(engine.streams):
        engine.end(row)
    for kept in list(engine.kept):
        engine.forget(kept)
    engine.free_late()
    assert engine.places.audit() is None
    assert engine.places.device.used == engine.places.host.used == 0
    assert engine.places.staged().size == 0
    assert not engine.places.alive.any()


@pytest.mark.parametrize(("page", "eager"), [(1, 0.0), (4, 0.3), (16, 0.0)])
def test_a_thousand_random_operations(page, eager) -> None:
    chance = random.Random(page)
    engine = MadeUpEngine(
        layers=6, pages=640 // page, ratio=3.0, page=page, chance=chance, eager=eager
    )
    switches = switches_of(engine.executor)
    random_operations(engine, chance, 1000)
    assert sum(switches) > 500
    assert engine.executor.fetched > 1000
    assert_nothing_left(engine)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    layers=st.integers(1, 7),
    page=st.sampled_from([1, 2, 16]),
    ratio=st.floats(1.0, 7.0),
    eager=st.sampled_from([0.0, 0.2, 1.0]),
    shipped=st.booleans(),
)
def test_any_sizes_and_orders(seed, layers, page, ratio, eager, shipped) -> None:
    chance = random.Random(seed)
    engine = MadeUpEngine(
        layers=layers,
        pages=max(320 // page, 4),
        ratio=min(ratio, layers),
        page=page,
        chance=chance,
        planner=EvenSpread() if shipped else RandomLayouts(chance),
        eager=eager,
    )
    random_operations(engine, chance, 60)
    assert_nothing_left(engine)


def test_a_batch_that_does_not_fit_is_served_whole() -> None:
    """225 pages of nine layers, 160 of which the device has."""
    engine = MadeUpEngine(
        layers=9, pages=25, ratio=225 / 160, page=4, chance=random.Random(1), planner=EvenSpread()
    )
    rows = [engine.arrive() for _ in range(5)]
    assert engine.step({row: 17 for row in rows})  # 25 pages of 4 tokens
    for _ in range(3):
        assert engine.step({row: 1 for row in rows})
    assert not engine.free
    assert engine.places.device.used <= 160
    assert engine.executor.fetched > 0
    assert_nothing_left(engine)


def test_what_rests_gives_way_first() -> None:
    engine = MadeUpEngine(
        layers=4, pages=16, ratio=2.0, page=1, chance=random.Random(1), planner=Fixed()
    )
    first, second = engine.arrive(), engine.arrive()
    assert engine.step({first: 6})  # 24 of 32 cells
    assert engine.step({second: 7})  # 28 more
    assert all(engine.places.on_host(layer, np.array([16])).all() for layer in range(4))
    assert engine.executor.plans.masks[first].all()
    assert not engine.executor.plans.masks[second].any()
    assert engine.step({first: 1})
    assert_nothing_left(engine)


def test_no_planner_is_asked_about_what_is_paused_and_it_stays_where_it_is() -> None:
    asked = Asked(r1=(2,))
    engine = MadeUpEngine(
        layers=4, pages=16, ratio=2.0, page=1, chance=random.Random(1), planner=asked
    )
    first, second = engine.arrive(), engine.arrive()
    assert engine.step({first: 3})
    engine.executor.plans.paused = frozenset({first})
    assert engine.step({second: 2})
    assert [each.rows.tolist() for each in asked.seen] == [[first], [second]]
    assert not engine.executor.is_resident(first)
    assert engine.executor.is_resident(second)
    assert engine.executor.plans.masks[first].tolist() == [False, True, False, False]
    assert engine.step({first: 1}), "resumed"
    assert asked.seen[-1].rows.tolist() == [first, second]
    assert_nothing_left(engine)


def test_streams_that_begin_alike_have_one_copy() -> None:
    """The first of them says where its layers lie; what a prefill reads of it is staged."""
    asked = Asked(r1=(2, 3), r2=(1,))
    engine = MadeUpEngine(
        layers=4, pages=16, ratio=2.0, page=2, chance=random.Random(1), planner=asked
    )
    first = engine.arrive()
    assert engine.step({first: 9})
    second = engine.arrive(engine.keep(first))
    assert engine.step({second: 3}), "a prefill, without the other one"
    assert asked.seen[-1].rows.tolist() == [second, first]
    assert asked.seen[-1].pages.tolist() == [2, 5]
    assert asked.seen[-1].read.tolist() == [2, 4], "but for the last page, which is not shared"
    assert engine.step({first: 1, second: 1})
    assert asked.seen[-1].pages.tolist() == asked.seen[-1].read.tolist() == [5, 2]
    shared = np.array(engine.streams[second].places[:8:2]) // 2
    assert engine.places.on_host(1, shared).all()
    assert not engine.places.on_host(0, shared).any()
    assert_nothing_left(engine)


def test_what_outlives_its_stream_leaves_first_and_is_read_from_the_host() -> None:
    asked = Asked()
    engine = MadeUpEngine(
        layers=4, pages=16, ratio=2.0, page=1, chance=random.Random(1), planner=asked
    )
    first = engine.arrive()
    assert engine.step({first: 6})  # 24 of 32 cells
    kept = engine.keep(first)
    engine.end(first)
    second = engine.arrive()
    assert engine.step({second: 5}), "20 more"
    assert asked.seen[-1].rows.tolist() == [second], "no planner is asked about it"
    assert engine.executor.is_resident(second)
    away = engine.places.on_host(0, np.array(kept.places))
    assert 3 <= away.sum() < 6, "no more of it leaves than has to"
    engine.end(second)
    third = engine.arrive(kept)
    fetched = engine.executor.fetched
    assert engine.step({third: 1}), "its layers come back, since nothing else needs the device"
    assert engine.executor.fetched == fetched
    assert not engine.places.on_host(0, np.array(kept.places)).any()
    assert_nothing_left(engine)


def test_a_beginning_longer_than_the_device_is_read_layer_by_layer() -> None:
    engine = MadeUpEngine(
        layers=4, pages=16, ratio=2.0, page=1, chance=random.Random(1), planner=EvenSpread()
    )
    first = engine.arrive()
    assert engine.step({first: 12})  # 48 cells, of 32
    kept = engine.keep(first)
    engine.end(first)
    fetched = engine.executor.fetched
    second = engine.arrive(kept)
    assert engine.step({second: 2})
    assert engine.executor.fetched >= fetched + 12
    assert_nothing_left(engine)


def test_a_paused_stream_gives_up_what_another_reads() -> None:
    """Else the planner would not be asked where the pages lie that the step reads."""
    asked = Asked(r1=(1, 2, 3, 4))
    engine = MadeUpEngine(
        layers=4, pages=16, ratio=2.0, page=1, chance=random.Random(1), planner=asked
    )
    first = engine.arrive()
    assert engine.step({first: 4})
    second = engine.arrive(engine.keep(first))
    engine.executor.plans.paused = frozenset({first})
    assert engine.step({second: 1})
    assert asked.seen[-1].rows.tolist() == [second]
    assert asked.seen[-1].pages.tolist() == [5]
    assert not engine.places.on_host(0, np.array(engine.streams[second].places)).any()
    assert engine.step({first: 1, second: 1}), "resumed"
    assert asked.seen[-1].pages.tolist() == [1, 6]
    assert_nothing_left(engine)


def test_the_links_speed_is_learned_from_a_resume_too() -> None:
    """Where all that runs lies on the device, no step fetches anything."""
    engine = MadeUpEngine(
        layers=4, pages=24, ratio=2.0, page=1, chance=random.Random(1), planner=Fixed()
    )
    first, second = engine.arrive(), engine.arrive()
    assert engine.step({first: 9})
    engine.executor.plans.paused = frozenset({first})
    assert engine.step({second: 8})
    assert not engine.executor.is_resident(first)
    engine.end(second)
    engine.copies.seconds = lambda begin, end: 0.5
    assert engine.executor._speeds.known is None
    for _ in range(2):
        assert engine.step({first: 1}), "resumed"
    assert engine.executor.fetched == 0
    assert engine.executor._speeds.known.pages == engine.executor.loaded / 0.5


def test_a_page_that_is_freed_late_counts_although_its_row_has_another_stream() -> None:
    engine = MadeUpEngine(
        layers=2, pages=12, ratio=1.2, page=1, chance=random.Random(0), planner=Fixed()
    )
    engine._chance.random = lambda: 0.0  # the last page of a stream is freed a step later
    assert engine.step({engine.arrive(): 6})
    engine.end(1)
    assert engine.places.device.used == 2
    row = engine.arrive()
    assert row == 1
    assert engine.step({row: 10}), "20 cells, and as many are there"
    assert_nothing_left(engine)


def test_a_fence_that_is_missing_is_noticed() -> None:
    """Negative control: a layer that does not wait reads what has not landed."""

    class NoFence(LayerExecutor):
        def before(self, layer: int) -> None:
            self._landing.clear()
            super().before(layer)

    chance = random.Random(3)
    engine = MadeUpEngine(
        layers=4, pages=40, ratio=1.0, page=4, chance=chance, planner=Fixed(r1=every(4, 2)), eager=0
    )
    engine.executor.__class__ = NoFence
    row = engine.arrive()
    assert engine.step({row: 9})
    with pytest.raises(AssertionError):
        engine.step({row: 1})


def test_tokens_that_do_not_follow_to_the_host_are_noticed() -> None:
    chance = random.Random(3)
    engine = MadeUpEngine(
        layers=4, pages=40, ratio=1.0, page=4, chance=chance, planner=Fixed(r1=(2,)), eager=1
    )
    row = engine.arrive()
    assert engine.step({row: 9})
    engine.executor.after = lambda layer: None
    assert engine.step({row: 1})
    with pytest.raises(AssertionError):
        engine.step({row: 1})


def test_a_planner_that_fails_is_replaced(caplog) -> None:
    class Bad:
        def layouts(self, streams):
            return [(99,)] * len(streams.rows)

    engine = MadeUpEngine(
        layers=4, pages=16, ratio=2.0, page=1, chance=random.Random(1), planner=Bad()
    )
    row = engine.arrive()
    assert engine.step({row: 5})
    assert engine.step({row: 1})
    assert caplog.text.count("layout is (99,); allowed are layers from 1 to 4") == 1


def test_a_planner_that_changes_what_it_is_shown_is_replaced(caplog) -> None:
    """Else what it says would be cut down to what fits by other sizes than those of the streams."""

    class Forgets:
        def layouts(self, streams):
            streams.pages[:] = 0
            return [()] * len(streams.rows)

    engine = MadeUpEngine(
        layers=4, pages=16, ratio=2.0, page=1, chance=random.Random(1), planner=Forgets()
    )
    assert engine.step({engine.arrive(): 12})
    assert caplog.text.count("the planner of layers failed") == 1


def test_all_pages_taken_back_at_once() -> None:
    engine = MadeUpEngine(layers=4, pages=16, ratio=2.0, page=1, chance=random.Random(1))
    assert engine.step({engine.arrive(): 5})
    engine.executor.clear()
    engine.streams.clear()
    assert engine.places.staged().size == 0
    assert_nothing_left(engine)
