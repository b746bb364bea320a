"""No name of SGLang's objects is touched without a row of the ledger."""

from __future__ import annotations

import pytest
from held_names import ELSEWHERE, any_parameters, our_names, without_row

from tokenflow_sgl.engine.sglang.ledger import ledger, sources

SCRATCH = "tokenflow_sgl.engine.scratch"
pytestmark = pytest.mark.filterwarnings("ignore")  # of what is imported to be asked for its names


def missing(text: str) -> list[tuple[str, int]]:
    found = without_row({SCRATCH: text}, ledger(), our_names())
    return [(touch.name, int(touch.where.rpartition(":")[2])) for touch in found]


def test_every_name_has_a_row() -> None:
    assert without_row(sources(), ledger(), our_names()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(req):\n    return req.made_up_by_sglang\n", [("made_up_by_sglang", 2)]),
        ("class A(Scheduler):\n    def f(self):\n        self.made_up = 1\n", [("made_up", 3)]),
        ("def f(req: Any):\n    req.rid.made_up()\n", [("made_up", 2)]),
        # A name that is ours, too, of something that may be SGLang's.
        ("def f(thing: Any):\n    thing.effort = 1\n", [("effort", 2)]),
        ("def f(thing: Mine):\n    return thing.effort\n", []),
        ("def f(req: Any):\n    return req.rid, req.output_ids.append(1)\n", []),
        ("import torch\ndef f(stream):\n    torch.cuda.made_up(stream).record_event()\n", []),
        ("import json\ndef f(text: Any):\n    return json.loads(text.strip())\n", []),
    ],
)
def test_a_name_without_a_row_is_noticed(text, found) -> None:
    assert sorted(missing(text)) == sorted(found)


def test_a_row_that_goes_is_noticed() -> None:
    """Each member of a Protocol is needed: without the rows of one class others do not do."""
    rows = [seam for seam in ledger() if ".overlap_utils:FutureMap." not in seam.target]
    found = {touch.name for touch in without_row(sources(), rows, our_names())}
    assert found >= {"need_topk", "topk_p_buf", "stash"}


def test_what_is_excepted_is_in_use_and_no_row() -> None:
    rows = {seam.target.rpartition(".")[2] for seam in ledger()}
    assert not ELSEWHERE.keys() & rows
    text = "\n".join(sources().values())
    assert [name for name in ELSEWHERE if f".{name}" not in text] == []


def test_few_parameters_could_be_anything() -> None:
    """477 of 1,611 before SGLang's objects had types."""
    anything, every = any_parameters()
    assert anything / every < 0.1
