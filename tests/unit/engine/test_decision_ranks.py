"""Which ranks decide together, by SGLang's figures of this process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine.ranks import decides_alone, place_in_group, rank_path


def ranks(tp: tuple[int, int], cp: tuple[int, int] = (0, 1)) -> SimpleNamespace:
    return SimpleNamespace(
        attn_tp_rank=tp[0], attn_tp_size=tp[1], attn_cp_rank=cp[0], attn_cp_size=cp[1]
    )


@pytest.mark.parametrize(
    ("found", "alone", "place"),
    [
        (ranks((0, 1)), True, 0),  # one rank, or DP attention as wide as the server
        (ranks((1, 2)), False, 1),
        (ranks((0, 1), (1, 2)), False, 1),
        (ranks((1, 2), (1, 2)), False, 3),
    ],
)
def test_ranks_that_share_attention_decide_together(found, alone, place) -> None:
    assert decides_alone(found) is alone
    assert place_in_group(found) == place


def test_groups_have_files_of_their_own() -> None:
    assert str(rank_path("a/log", None)) == "a/log"
    assert str(rank_path("a/log", 0, 0)) == "a/log"
    assert str(rank_path("a/log", 2, 1)) == "a/log.dp2.pp1"
