"""The tenants of a server: who has streams, and as which number policies see each.

The numbers are few, since who asks is up to clients: those that an operator names have one each,
others get one when they come, and where all are taken they share the last.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from tokenflow_sgl.qos.classes import OTHERS, QosClasses, Tenant

MOST_TENANTS = 64
"""Numbers that there are: a plan looks at each tenant by itself."""


class LiveTenants:
    """Numbers of tenants, and how many streams each has.

    All ranks see the same requests come and go in one order, so they give the same numbers.

    Args:
        classes: Grant tenants what they may.
        most: Numbers that there are.
    """

    def __init__(self, classes: QosClasses, most: int = MOST_TENANTS) -> None:
        self._classes = classes
        named = list(classes.tenants)
        self._number = {key: number for number, key in enumerate(named)}
        self._granted = {number: classes.tenants[key] for number, key in enumerate(named)}
        self._shared = most - 1
        self._free = list(range(self._shared - 1, len(named) - 1, -1))
        self._others: OrderedDict[str, int] = OrderedDict()  # who came last is last
        self._streams: Counter[int] = Counter()

    def number(self, key: str) -> int:
        """Number of the tenant of this key, which it keeps at least while it has streams."""
        if (known := self._number.get(key)) is not None:
            return known
        if key in self._others:
            self._others.move_to_end(key)
            return self._others[key]
        if not self._free:
            # Of those that are away, who has been so the longest gives its number up.
            away = (each for each, number in self._others.items() if not self._streams[number])
            if (gone := next(away, None)) is None:
                return self._shared
            self._free.append(self._others.pop(gone))
        self._others[key] = self._free.pop()
        return self._others[key]

    def granted(self, number: int) -> Tenant:
        """What the tenant of this number may."""
        return self._granted.get(number, self._classes.others)

    def by_name(self) -> dict[str, list[int]]:
        """Numbers by what metrics call them: the key of each that the operator named, or others."""
        named = {self._granted[number].name: [number] for number in self._granted}
        return {**named, OTHERS: list(range(len(named), self._shared + 1))}

    def full(self, key: str) -> Tenant | None:
        """What the tenant of this key is granted, if it has as many streams as it may."""
        number = self.number(key)
        return self.granted(number) if self._is_full(number) else None

    def all_full(self) -> list[str]:
        """Keys of the tenants that have as many streams as they may."""
        known = (*self._number.items(), *self._others.items())
        return [key for key, number in known if self._is_full(number)]

    def _is_full(self, number: int) -> bool:
        most = self.granted(number).streams
        return most is not None and self._streams[number] >= most

    def join(self, key: str) -> int:
        """It has one more stream; its number."""
        number = self.number(key)
        self._streams[number] += 1
        return number

    def leave(self, number: int) -> None:
        """It has one stream less."""
        self._streams[number] -= 1
