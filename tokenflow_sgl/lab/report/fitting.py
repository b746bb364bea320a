"""Tables on narrow terminals: whole words and numbers, or a row as a block."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ENDLESS = 1000


class Fitting:
    """A table that cuts no word and no number off.

    Where there is no room for the longest word of each column, each row becomes a block of lines,
    one for each of its cells, with the column's head before it.

    Args:
        table: The table, of texts; its columns are given widths where they must be narrow.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, or its blocks."""
        table, endless = self._table, options.update(max_width=_ENDLESS)
        room = options.max_width - Measurement.get(console, endless, table).maximum
        if room < 0:
            sizes = []
            for column in table.columns:
                cells = (column.header, *column.cells)
                found = [Measurement.get(console, endless, cell) for cell in cells]
                sizes.append(tuple(max(ends) for ends in zip(*found, strict=True)))
            room += sum(most - least for least, most in sizes)
            if room < 0:
                yield from self._blocks()
                return
            # Rich would take from all columns alike, also from words and numbers.
            for column, (least, most) in zip(table.columns, sizes, strict=True):
                column.width = min(least + room, most)
                room -= column.width - least
        yield table

    def _blocks(self) -> Iterator[RenderableType]:
        table = self._table
        if table.title:
            yield table.title
        for row in zip(*(column.cells for column in table.columns), strict=True):
            for column, cell in zip(table.columns, row, strict=True):
                head = _text(column.header)
                yield Text.assemble(head, ": " if head.plain else "", _text(cell), overflow="fold")
            yield Text()


def _text(cell: RenderableType) -> Text:
    """A cell as text; tables here have no others."""
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))
