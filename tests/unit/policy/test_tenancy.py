"""Shares of tenants: counters, the order of newcomers, who joins, who gives way, whose prefill."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tokenflow_sgl.contract import Cause, Mode, Phase
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.admission_rules import AdmissionRules
from tokenflow_sgl.policy.prefill import SHORTEST_CHUNK, prefill_gate
from tokenflow_sgl.policy.tenancy import (
    CREDIT,
    WELCOME,
    Service,
    TenantView,
    due,
    level,
    served,
    tenancy_of,
)
from tokenflow_sgl.policy.tenant_exchange import exchange_by_shares, join_by_shares
from tokenflow_sgl.policy.tenant_turns import LEAST_BEGUN, own_step, prefill_turn
from tokenflow_sgl.policy.working_set import WorkingSetPolicy

CONFIG = WorkingSetConfig()
MINE, NOISY = 0, 1


@pytest.fixture
def tenants(make_state: Any) -> Any:
    """The tenants of a state of these rows, and the state."""

    def make(rows: list[Any], service: Service | None = None, **given: Any) -> Any:
        state = make_state(rows, **given)
        view = TenantView(state)
        return state, tenancy_of(state, CONFIG, view, service or Service(), {})

    return make


def test_shares_go_by_weight(make_state, make_stream) -> None:
    rows = [make_stream(tenant=5, tenant_weight=3.0), make_stream(tenant=9), make_stream(tenant=5)]
    rows[2]["tenant_weight"] = 3.0
    view = TenantView(make_state(rows))
    assert view.ids.tolist() == [5, 9]
    assert view.share.tolist() == [0.75, 0.25]
    assert view.of.tolist() == [0, 1, 0]


def test_a_part_of_the_server_has_nothing_of_others(tenants, make_stream) -> None:
    rows = [make_stream(tenant=MINE), *(make_stream(tenant=NOISY) for _ in range(30))]
    state, tenancy = tenants(rows)
    part, index = tenancy.alone[0]
    assert index.tolist() == [0]
    assert part.memory.kv.total == state.memory.kv.total // 2
    assert part.memory.kv.free == 5000 - 200
    assert part.costs.decode_seconds(1, 100) == pytest.approx(
        2 * state.costs.decode_seconds(1, 100)
    )


@pytest.mark.parametrize(
    ("asked", "whole", "found"),
    [
        ((0.2, 0.7), 1.0, (np.inf, np.inf)),
        ((0.2, 2.0), 1.0, (0.8, 0.8)),
        ((3.0, 2.0), 1.0, (0.5, 0.5)),
        ((0.2, 0.7), 0.8, (0.6, 0.6)),
    ],
)
def test_what_one_does_not_ask_for_is_the_others(
    make_state, make_stream, asked, whole, found
) -> None:
    view = TenantView(make_state([make_stream(tenant=MINE), make_stream(tenant=NOISY)]))
    assert level(view, np.array(asked), whole) == pytest.approx(np.array(found))


def test_prefills_and_tokens_are_counted_at_their_costs(make_state, make_stream) -> None:
    waits = [make_stream(Phase.WAITING, tenant=tenant, prompt=1000) for tenant in (MINE, NOISY)]
    before = make_state(waits)
    view = TenantView(before)
    first = served(before, view, Service())
    assert first.served == {MINE: 0.0, NOISY: 0.0}
    begun = [waits[0], {**waits[1], "phase": Phase.RUNNING, "generated": 3}]
    after = make_state(begun, now=100.1)
    second = served(after, TenantView(after), first)
    prefill = after.costs.prefill_seconds(1000.0)
    token = after.costs.decode_seconds(1, 1003.0)
    assert second.served[MINE] == 0.0
    assert second.served[NOISY] == pytest.approx(prefill + 3 * token)


def test_none_is_further_behind_than_the_credit(make_state, make_stream) -> None:
    rows = [make_stream(tenant=MINE), make_stream(tenant=NOISY)]
    made = make_state(rows)
    long_ago = Service(served={MINE: 0.0, NOISY: 1000.0}, there=frozenset({MINE, NOISY}))
    assert served(made, TenantView(made), long_ago).served == {MINE: 0.0, NOISY: CREDIT}


def test_being_away_saves_up_nothing(make_state, make_stream) -> None:
    made = make_state([make_stream(tenant=MINE), make_stream(tenant=NOISY)])
    alone = Service(served={NOISY: 8.0, 7: 3.0}, there=frozenset({NOISY, 7}))
    # Of those that were there and still are, the least counts.
    found = served(made, TenantView(made), alone).served
    assert found[NOISY] - found[MINE] == pytest.approx(WELCOME)


def test_the_one_that_was_given_least_goes_first(tenants, make_stream) -> None:
    rows = [
        *(make_stream(Phase.WAITING, tenant=NOISY, prompt=10) for _ in range(3)),
        *(make_stream(Phase.WAITING, tenant=MINE, prompt=2000) for _ in range(2)),
    ]
    given = Service(served={MINE: 0.0, NOISY: 5.0}, there=frozenset({MINE, NOISY}))
    _, tenancy = tenants(rows, given)
    assert np.argsort(tenancy.keys).tolist() == [3, 4, 0, 1, 2]
    # The control: given alike, the short ones go between.
    _, tenancy = tenants(rows, Service(served={MINE: 0.0, NOISY: 0.0}))
    assert np.argsort(tenancy.keys).tolist()[:2] != [3, 4]


def crowd(make_stream, count: int, **more: Any) -> list[Any]:
    """Streams of the other tenant that stall all the time."""
    return [
        make_stream(tenant=NOISY, rate=1000.0, slack=-5.0, since=50.0, **more) for _ in range(count)
    ]


@pytest.mark.parametrize("streaming", [True, False])
def test_who_is_above_its_part_gives_way_to_a_newcomer(tenants, make_stream, streaming) -> None:
    rows = [*crowd(make_stream, 40, streaming=streaming), make_stream(Phase.WAITING, tenant=MINE)]
    state, tenancy = tenants(rows, total=8200)
    admission = join_by_shares(state, AdmissionRules(CONFIG), tenancy)
    assert admission.join.tolist() == [40]
    outcome = exchange_by_shares(state, CONFIG, admission, tenancy)
    assert outcome.run[0] == 40
    assert outcome.preempt
    assert {each.cause for each in outcome.preempt} == {Cause.NEWCOMER}
    # The control: where tenants are not told apart, it neither joins nor displaces one.
    rows = [{**row, "tenant": None} for row in rows]
    plain = WorkingSetPolicy().decide(dataclasses.replace(state, streams=_untold(state)))
    assert not plain.admit
    assert not any(each.cause is Cause.NEWCOMER for each in plain.preempt)


def _untold(state: Any) -> Any:
    return dataclasses.replace(state.streams, tenant=None, tenant_weight=None)


def test_who_is_within_its_part_does_not_give_way(tenants, make_stream) -> None:
    own = [make_stream(tenant=MINE, slack=8.0, since=50.0) for _ in range(5)]
    paused = [{**row, "phase": Phase.PAUSED, "preemptible": False} for row in crowd(make_stream, 9)]
    rows = [*own, *crowd(make_stream, 30), *paused]
    state, tenancy = tenants(rows, total=7100)
    admission = join_by_shares(state, AdmissionRules(CONFIG), tenancy)
    outcome = exchange_by_shares(state, CONFIG, admission, tenancy)
    gone = state.streams.find([each.slot for each in outcome.preempt])
    assert not (gone < len(own)).any()


def test_a_newcomer_begins_beside_an_endless_prompt(make_state, make_stream) -> None:
    endless = make_stream(tenant=NOISY, prompt=90_000, generated=0)
    waits = make_stream(Phase.WAITING, tenant=MINE, prompt=500, admitted=True)
    state = make_state([endless, waits], promised=60_000, total=200_000)
    view = TenantView(state)
    given = Service(
        served={MINE: 0.0, NOISY: 3.0},
        part=(state.streams.slot.item(0), 60_000),
        there=frozenset({MINE, NOISY}),
    )
    turn = prefill_turn(state, view, given, np.array([1]), CONFIG.prefill_chunk)
    gate = prefill_gate(state, CONFIG, np.array([1]), turn)
    assert (gate.begun, gate.limit) == (LEAST_BEGUN, LEAST_BEGUN + 500)
    # The control: given alike, the prompt under way goes on.
    alike = dataclasses.replace(given, served={MINE: 0.0, NOISY: 0.0})
    turn = prefill_turn(state, view, alike, np.array([1]), CONFIG.prefill_chunk)
    assert prefill_gate(state, CONFIG, np.array([1]), turn).begun is None
    # Given even more, but all of that prompt is still to come.
    soon = dataclasses.replace(given, served={MINE: 2.0, NOISY: 0.0}, left={NOISY: 8.0})
    turn = prefill_turn(state, view, soon, np.array([1]), CONFIG.prefill_chunk)
    assert prefill_gate(state, CONFIG, np.array([1]), turn).begun == LEAST_BEGUN


def test_a_short_prompt_goes_before_a_long_one_of_who_was_given_a_little_less(
    tenants, make_stream
) -> None:
    rows = [
        make_stream(Phase.WAITING, tenant=NOISY, prompt=30_000),
        make_stream(Phase.WAITING, tenant=MINE, prompt=100),
    ]
    long_s, short_s = tenants(rows)[0].prefill_seconds.tolist()
    for more, first in ((0.5, 1), (1.5, 0)):
        given = Service(served={MINE: more * long_s, NOISY: 0.0}, there=frozenset({MINE, NOISY}))
        state, tenancy = tenants(rows, given)
        assert tenancy.keys.argmin() == first
    assert due(state, tenancy.view, given).tolist() == [long_s, 1.5 * long_s + short_s]
    under = dataclasses.replace(given, left={NOISY: 4.0 * long_s})
    assert due(state, tenancy.view, under)[0] == 5.0 * long_s


def test_readers_catch_up_beside_the_prefills_of_who_was_given_more(
    make_state, make_stream
) -> None:
    read = make_stream(tenant=MINE, slack=-0.2, rate=20.0)
    waits = make_stream(Phase.WAITING, tenant=NOISY, prompt=2000, admitted=True)
    state = make_state([read, waits])
    view = TenantView(state)
    there = frozenset({MINE, NOISY})
    limits = []
    for more in (0.0, 3.0):
        given = Service(served={MINE: 0.0, NOISY: more}, there=there)
        turn = prefill_turn(state, view, given, np.array([1]), CONFIG.prefill_chunk)
        limits.append(prefill_gate(state, CONFIG, np.array([1]), turn).limit)
    assert SHORTEST_CHUNK <= limits[1] < limits[0]


def test_a_step_is_of_one_tenant(make_state, make_stream) -> None:
    rows = [make_stream(Phase.WAITING, tenant=each, admitted=True) for each in (NOISY, MINE, NOISY)]
    state = make_state(rows)
    slots = tuple(state.streams.slot.tolist())
    view = TenantView(state)
    given = Service(served={MINE: 0.0, NOISY: 3.0})
    assert own_step(state, view, given, slots).tolist() == [slots[1]]
    assert own_step(state, view, Service(), slots).tolist() == list(slots)


def test_one_tenant_alone_is_served_as_if_there_were_none(make_state, make_stream) -> None:
    rows = [make_stream(tenant=3), make_stream(Phase.WAITING, tenant=3, prompt=9000)]
    state = make_state(rows, free=500)
    told = WorkingSetPolicy().decide(state)
    plain = WorkingSetPolicy().decide(dataclasses.replace(state, streams=_untold(state)))
    assert told.mode is Mode.WORKING_SET
    assert (told.admit, told.run, told.preempt) == (plain.admit, plain.run, plain.preempt)


def test_one_that_comes_does_not_wait_for_what_others_have_begun(make_state, make_stream) -> None:
    alone = make_state([make_stream(tenant=NOISY)])
    before = served(alone, TenantView(alone), Service())
    made = make_state([make_stream(tenant=MINE), make_stream(tenant=NOISY)], now=100.1)
    assert served(made, TenantView(made), before).served[NOISY] >= WELCOME
