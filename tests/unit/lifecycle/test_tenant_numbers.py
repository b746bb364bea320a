"""Numbers of tenants: few, stable while there are streams, and capped as the operator says."""

from __future__ import annotations

from tokenflow_sgl.lifecycle.live_tenants import LiveTenants
from tokenflow_sgl.qos.classes import SHIPPED, QosClasses, Tenant

CLASSES = QosClasses(
    SHIPPED,
    SHIPPED["reading"],
    tenants={"gold": Tenant("gold", weight=4.0, streams=2)},
    others=Tenant("others", streams=3),
)


def test_those_that_are_named_have_numbers_of_their_own() -> None:
    tenants = LiveTenants(CLASSES)
    gold, other = tenants.join("gold"), tenants.join("hash:1")
    assert gold != other
    assert (tenants.granted(gold).weight, tenants.granted(other).weight) == (4.0, 1.0)
    names = tenants.by_name()
    assert names["gold"] == [gold]
    assert other in names["others"]
    assert gold not in names["others"]


def test_too_many_share_the_last_number() -> None:
    tenants = LiveTenants(CLASSES, most=4)
    numbers = [tenants.join(f"hash:{each}") for each in range(5)]
    assert len(set(numbers[:3])) == 3
    assert numbers[2] == numbers[3] == numbers[4] == 3
    tenants.leave(numbers[0])
    # Whoever has been away the longest gives its number up, and none that has streams.
    assert tenants.join("hash:9") == numbers[0]
    assert tenants.join("hash:8") == 3


def test_a_cap_counts_streams_that_are_there() -> None:
    tenants = LiveTenants(CLASSES)
    number = tenants.join("gold")
    assert tenants.full("gold") is None
    tenants.join("gold")
    assert tenants.full("gold") == CLASSES.tenants["gold"]
    tenants.leave(number)
    assert tenants.full("gold") is None
    assert tenants.full("hash:1") is None
