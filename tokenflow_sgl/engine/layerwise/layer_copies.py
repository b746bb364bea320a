"""What the executor needs of the memory: copies between device and host, and waiting for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tokenflow_sgl.contract import IntArray

Moment = Any
"""A point in what a stream does; None where the device does not tell when it was."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A copy that was asked for: something to wait for."""

    begin: Moment
    end: Moment


class LayerCopies(Protocol):
    """Copies of KV between the device's cells and the host's.

    Those in one direction are done in the order in which they are asked for. Each begins when what
    has been computed so far is done.
    """

    def to_device(self, device: IntArray, host: IntArray, after: Ticket | None) -> Ticket:
        """Copy whole cells from the host to the device.

        Args:
            device: Cells, of shape (n,). Until the copy has ended, what they hold is no KV.
            host: Cells, of shape (n,).
            after: A copy to the host that has to end before; None: none has.
        """
        ...

    def to_host(self, device: IntArray, host: IntArray) -> Ticket:
        """Copy whole cells from the device to the host; arguments as of `to_device`."""
        ...

    def tokens_to_host(self, device: IntArray, host: IntArray) -> Ticket:
        """Copy single tokens to the host: places, cell * page size + place in it, of shape (n,)."""
        ...

    def wait(self, ticket: Ticket) -> None:
        """What is computed from now on begins after this copy has ended."""
        ...

    def moment(self) -> Moment:
        """When what has been computed so far is done."""
        ...

    def seconds(self, begin: Moment, end: Moment) -> float | None:
        """From one moment to a later one; None: not known, or it has not come."""
        ...
