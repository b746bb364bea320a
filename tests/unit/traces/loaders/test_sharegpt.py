"""What the loader makes of ShareGPT files, by hand."""

from __future__ import annotations

import pytest

from tokenflow_sgl.lab.traces import TraceError
from tokenflow_sgl.lab.traces.generators.arrivals import BurstArrivals, PoissonArrivals
from tokenflow_sgl.lab.traces.loaders import load_sharegpt

SHAREGPT = """\
num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio
74,918,992,0.08
1010,20,1030,1
1030,5,1035,1
50,0,50,1
60,5,65,1
66,5,71,1
"""


def test_sharegpt_infers_conversations(write, is_balanced):
    arrivals = BurstArrivals(size=1, every_s=10)
    trace = load_sharegpt(write(SHAREGPT), arrivals=arrivals, think_s=2)
    assert is_balanced(trace)
    assert trace.accounting.dropped == {"no output tokens": 1}
    # 1030 does not exceed the total before it (1030); the dropped row opens a conversation.
    assert [(r.session, r.turn, r.arrival_s, r.think_s) for r in trace.requests] == [
        ("c0", 0, 0.0, 0.0),
        ("c0", 1, 0.0, 2.0),
        ("c1", 0, 10.0, 0.0),
        ("c2", 0, 20.0, 0.0),
        ("c2", 1, 20.0, 2.0),
    ]
    assert "conversations start by burst:size=1,every_s=10, seed 0" in trace.notes[1]


def test_sharegpt_refuses_a_total_that_is_no_sum(write):
    path = write(SHAREGPT + "1,1,3,0\n")
    with pytest.raises(TraceError, match=r"line 8, column num_total_tokens: is '3'; .* the sum, 2"):
        load_sharegpt(path, arrivals=PoissonArrivals(1))
