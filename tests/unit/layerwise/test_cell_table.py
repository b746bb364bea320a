"""The table of cells that attention reads: the host's own, or a copy that each step updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokenflow_sgl.engine.layerwise.cell_table import CellTable
from tokenflow_sgl.engine.layerwise.page_places import PagePlaces

LAYERS, PAGES = 2, 9


def numbers(*pages: int) -> np.ndarray:
    return np.array(pages, dtype=np.int64)


def places() -> PagePlaces:
    return PagePlaces(LAYERS, PAGES, 20, 20)


def on_host(count: int, *layers: int) -> np.ndarray:
    offloaded = np.zeros((LAYERS, count), dtype=np.bool_)
    offloaded[list(layers)] = True
    return offloaded


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("mirrored", [True, False])
def test_tokens_are_where_their_page_has_its_cell(page, mirrored) -> None:
    books = places()
    table = CellTable(books, page, "cpu", mirrored=mirrored)
    books.add(numbers(3, 7), on_host(2))
    books.add(numbers(2), on_host(1, 1))
    books.stage(numbers(2))
    table.update()
    tokens = torch.arange(PAGES * page).reshape(PAGES, page)
    for layer in range(LAYERS):
        expected = books.table[layer][:, None] * page + np.arange(page)
        found = table.where(layer, tokens)
        assert found.dtype == torch.int64
        assert np.array_equal(found.numpy(), expected)


def test_a_copy_changes_when_a_step_begins_and_not_before() -> None:
    """The host places the next step while the GPU has this one still before it."""
    books = places()
    table = CellTable(books, 1, "cpu", mirrored=True)
    books.add(numbers(3, 7), on_host(2))
    table.update()
    before = table.where(1, torch.tensor([3, 7, 2])).clone()
    books.remove(numbers(3))
    books.add(numbers(2), on_host(1))
    assert torch.equal(table.where(1, torch.tensor([3, 7, 2])), before)
    table.update()
    assert table.where(1, torch.tensor([3, 7, 2])).tolist() == books.table[1, [3, 7, 2]].tolist()


def test_only_what_has_changed_is_sent(monkeypatch) -> None:
    books, sent = places(), []
    table = CellTable(books, 1, "cpu", mirrored=True)
    send = CellTable._sent

    def counted(self, made: torch.Tensor) -> torch.Tensor:
        sent.append(made.numel())
        return send(self, made)

    monkeypatch.setattr(CellTable, "_sent", counted)
    books.add(numbers(3, 7, 8), on_host(3))
    table.update()
    table.update()
    books.add(numbers(2), on_host(1))
    table.update()
    assert sent == [3, 3 * LAYERS, 1, LAYERS]


def test_random_operations_leave_both_tables_alike() -> None:
    chance = np.random.default_rng(3)
    books = places()
    table = CellTable(books, 1, "cpu", mirrored=True)
    for _ in range(300):
        pages = chance.choice(np.arange(1, PAGES), 2, replace=False)
        alive, offloaded = books.alive[pages], chance.random((LAYERS, 2)) < 0.5
        if alive.all():
            books.unstage(pages)
            books.evict(pages, offloaded)
            books.load(pages, offloaded)
            books.stage(pages)
        elif alive.any():
            books.remove(pages)
        else:
            books.add(pages, offloaded)
        table.update()
        for layer in range(LAYERS):
            found = table.where(layer, torch.arange(PAGES))
            assert found.tolist() == books.table[layer].tolist()
