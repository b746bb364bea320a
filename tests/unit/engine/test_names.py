"""Requests by the beginning of their ids."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.engine.kv.names import Names

RIDS = st.text(alphabet="ab-\U0010ffff", max_size=4)


@given(st.lists(st.tuples(RIDS, st.booleans())), RIDS)
def test_finds_what_a_look_at_all_would_find(moves, prefix) -> None:
    names, held = Names(), []
    for rid, comes in moves:
        if comes:
            held.append(SimpleNamespace(rid=rid))
            names.add(held[-1])
            names.add(held[-1])
        elif held:
            names.discard(held.pop(len(rid) % len(held)))
    names.discard(SimpleNamespace(rid=prefix))
    found = names.beginning_with(prefix)
    assert {*map(id, found)} == {id(each) for each in held if each.rid.startswith(prefix)}
    assert [each.rid for each in found] == sorted(each.rid for each in found)
