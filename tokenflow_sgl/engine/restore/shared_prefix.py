"""Requests whose stored prefixes begin alike: what they share is fetched for the first of them.

SGLang's keys of pages are chained: each depends on all tokens before it. So two requests share all
of a prefix up to the last page whose key is the same.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable

from tokenflow_sgl.engine.restore.restored_request import Restoration, Stage


def place(each: Restoration, all_of_them: Iterable[Restoration], page: int) -> None:
    """Let it fetch only what none of those that began before brings."""
    before = itertools.takewhile(lambda other: other is not each, all_of_them)
    each.goes(Stage.TAIL)
    each.leader, each.shared = leader_of(each, before, page)
    if each.leader is not None:
        each.tail.enough = max(each.end - each.shared, 0)


def leader_of(
    each: Restoration, others: Iterable[Restoration], page: int
) -> tuple[Restoration | None, int]:
    """Which restoration brings most of what this one needs, too.

    Args:
        each: The storage has just said what it has of it.
        others: Restorations that began before.
        page: Tokens of a page.

    Returns:
        The restoration, and the tokens from the prompt's beginning on that both share; None where
        they share less than a batch behind what this one has already.
    """
    best, most = None, each.start + each.tail.batch * page - 1
    for other in others:
        if other.allocated and other.may_lead:
            shared = _shared_tokens(each, other, page)
            if shared > most:
                best, most = other, shared
    return best, most if best is not None else 0


def _shared_tokens(one: Restoration, other: Restoration, page: int) -> int:
    """Tokens up to the last page that both fetch; 0: there is none."""
    first = max(_first_page(one, page), _first_page(other, page))
    pages = range(first, min(one.end, other.end) // page)
    same = bisect.bisect_left(
        pages,
        True,
        key=lambda number: _key(one, number, page) != _key(other, number, page),
    )
    return (first + same) * page if same else 0


def _first_page(each: Restoration, page: int) -> int:
    """SGLang may have cut it: what is fetched is the end."""
    return each.end // page - len(each.operation.hash_value)


def _key(each: Restoration, number: int, page: int) -> str:
    # They are fetched from the last page on.
    return str(each.operation.hash_value[each.end // page - 1 - number])
