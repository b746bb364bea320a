"""What policies see of live tenants, and what tenants may change while they are served."""

from __future__ import annotations

import pytest
from tracked import Request, running, track

from tokenflow_sgl.lifecycle.live_tenants import LiveTenants
from tokenflow_sgl.lifecycle.reader_updates import set_rate
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths
from tokenflow_sgl.qos.classes import SHIPPED, QosClasses, Tenant

CLASSES = QosClasses(
    SHIPPED,
    SHIPPED["reading"],
    tenants={"gold": Tenant("gold", weight=4.0, rests=1, rate=20.0)},
)


@pytest.fixture
def table() -> StreamTable[Request]:
    return StreamTable(LimitLengths())


@pytest.fixture
def shared(table: StreamTable[Request]) -> StreamTable[Request]:
    table.tenants = LiveTenants(CLASSES)
    return table


def test_policies_see_tenants_and_their_weights(shared) -> None:
    for key in ("gold", "hash:1", "gold", "hash:2"):
        track(shared, Request(), tenant=key)
    streams = shared.streams(())
    assert streams.tenant is not None
    assert streams.tenant[0] == streams.tenant[2]
    assert len(set(streams.tenant.tolist())) == 3
    assert streams.tenant_weight.tolist() == [4.0, 1.0, 4.0, 1.0]


def test_without_tenants_there_is_nothing_to_see(table) -> None:
    track(table, Request())
    streams = table.streams(())
    assert streams.tenant is None
    assert streams.tenant_weight is None


def test_a_stream_that_leaves_counts_no_more(shared) -> None:
    request = Request()
    track(shared, request, tenant="gold")
    shared.forget(request, cut_off=True)
    assert shared.tenants.by_name()["gold"] == [0]
    assert shared.tenants._streams[0] == 0


def test_no_more_streams_rest_than_may(shared) -> None:
    gold = [running(shared, tenant="gold") for _ in range(2)]
    other = [running(shared, tenant="hash:1") for _ in range(2)]
    assert [set_rate(shared, each, 0.0, 3.0) for each in gold] == [True, False]
    assert all(set_rate(shared, each, 0.0, 3.0) for each in other)
    # When it reads again, another one may rest.
    assert set_rate(shared, gold[0], 10.0, 4.0)
    assert set_rate(shared, gold[1], 0.0, 4.0)


def test_no_reader_counts_as_faster_than_may(shared) -> None:
    gold, other = running(shared, tenant="gold"), running(shared, tenant="hash:1")
    for each in (gold, other):
        assert set_rate(shared, each, 500.0, 3.0)
    rates = shared.readers.rate
    assert rates[shared.slot(gold)] == 20.0
    assert rates[shared.slot(other)] == 500.0
