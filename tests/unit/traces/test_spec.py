from __future__ import annotations

import json

import pytest

from tokenflow_sgl.lab.traces import TraceError, open_trace, write_native
from tokenflow_sgl.lab.traces.spec import FORMATS, other_draw

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 00:{n // 60:02}:{n % 60:02},{100 + n},{10 + n}\n" for n in range(600)
)
SHAREGPT = "num_prefill_tokens,num_decode_tokens,num_total_tokens\n5,5,10\n20,5,25\n3,4,7\n"


@pytest.fixture
def azure(write):
    return f"azure:{write(AZURE, 'a.csv')}"


def test_workload():
    trace = open_trace("h200-c?seed=3&scale=0.5&duration=40&readers=10/20&limit=30")
    assert trace.name == "h200-c"
    assert len(trace.requests) == 30
    assert {r.rate for r in trace.requests} == {10.0, 20.0}
    assert open_trace("4090-a?scale=0.5").accounting.rows == 30


def test_transforms_in_their_order(azure):
    trace = open_trace(f"{azure}?start=60&duration=120&speed=2&max_context=300&share=0.5&seed=1")
    assert [note.split(" ")[0] for note in trace.notes[1:]] == [
        "Window",
        "Arrivals",
        "Contexts",
        "Sample",
    ]
    assert trace.accounting.rows == 600
    assert trace.requests[-1].arrival_s < 60
    dropped = trace.accounting.dropped
    assert dropped["arrival outside 60 to 180 s"] == 480
    # 100 + n + 10 + n > 300 from n = 96 on, of n = 60 .. 179
    assert dropped["over 300 tokens of context"] == 84


def test_objectives(azure):
    trace = open_trace(f"{azure}?ttft_slo=1&tbt_slo=0.1&limit=3")
    assert {(r.ttft_slo_s, r.tbt_slo_s) for r in trace.requests} == {(1.0, 0.1)}


def test_native_by_ending_and_by_name(tmp_path):
    trace = open_trace("4090-a")
    write_native(tmp_path / "x.jsonl", trace)
    assert open_trace(str(tmp_path / "x.jsonl")) == trace
    (tmp_path / "x.jsonl").rename(tmp_path / "x.dat")
    assert open_trace(f"native:{tmp_path / 'x.dat'}") == trace


def test_values_may_be_escaped(write):
    path = write("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
    path.write_text(path.read_text() + "1,A&B,1,1,2,API log\n2,C,1,1,2,API log\n")
    trace = open_trace(f"burstgpt:{path}?model=A%26B&log_type=API+log")
    assert trace.accounting.dropped == {"model is not A&B": 1}


def test_sharegpt_needs_arrivals(write):
    path = write(SHAREGPT)
    with pytest.raises(TraceError, match=r"arrivals must be given .* arrivals=poisson&rate=2"):
        open_trace(f"sharegpt:{path}")
    trace = open_trace(f"sharegpt:{path}?arrivals=poisson&rate=2&seed=0&think=3")
    assert [(r.session, r.turn, r.think_s) for r in trace.requests] == [
        ("c0", 0, 0),
        ("c0", 1, 3),
        ("c1", 0, 0),
    ]


def test_bench_needs_arrivals(write):
    row = {"input_lens": [3], "output_lens": [2], "errors": [""]}
    path = write(json.dumps(row), "b.jsonl")
    with pytest.raises(TraceError, match="arrivals must be given"):
        open_trace(f"bench:{path}")
    assert len(open_trace(f"bench:{path}?arrivals=gamma&rate=1&cv=2&run=1").requests) == 1


def test_agent_needs_think(write):
    header = "instance_id,step,offset_s,created_unix,prompt_tokens,completion_tokens\n"
    path = write(header + "a,0,0,5,1,1\na,1,9,14,5,1\n")
    with pytest.raises(TraceError, match="think must be given; allowed are gap, none, estimate"):
        open_trace(f"agent:{path}")
    with pytest.raises(TraceError, match="think is 'x'; allowed are"):
        open_trace(f"agent:{path}?think=x")
    assert open_trace(f"agent:{path}?think=gap").requests[1].think_s == 9


def test_servegen_finds_its_lengths(write):
    rates = write(
        "client,window_start_s,rate_rps,pattern,arg1,arg2\n1,0,1,Gamma,1,1\n", "m_rates.csv"
    )
    row = {"client": 1, "window_start_s": 0, "input_tokens": {"5": 1}, "output_tokens": {"7": 1}}
    lengths = write(json.dumps(row), "l.jsonl")
    with pytest.raises(TraceError, match=r"m_lengths\.jsonl\.gz: cannot be read"):
        open_trace(f"servegen:{rates}?start=0&duration=60")
    with pytest.raises(TraceError, match="start and duration must be given"):
        open_trace(f"servegen:{rates}")
    trace = open_trace(f"servegen:{rates}?start=0&duration=600&lengths={lengths}")
    assert len(trace.requests) == 600
    with pytest.raises(TraceError, match="lengths must be given, or PATH must end in _rates"):
        open_trace(f"servegen:{lengths}?start=0&duration=60")


def test_spread(write):
    text = AZURE.replace(",100,", ",101,")
    trace = open_trace(f"azure:{write(text)}?spread=1&seed=4")
    assert 0 < trace.requests[0].arrival_s < 1
    assert trace.notes[-1].startswith("Arrivals quantised to 1 s")


def test_mooncake_is_spread_unless_told_to_leave_it(write):
    row = '{"timestamp":%d,"input_length":3,"output_length":2,"hash_ids":[0]}\n'
    path = write("".join(row % (n // 4 * 3000) for n in range(40)), "m.jsonl")
    assert len({r.arrival_s for r in open_trace(f"mooncake:{path}").requests}) == 40
    left = open_trace(f"mooncake:{path}?quantised=yes")
    assert len({r.arrival_s for r in left.requests}) == 10


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("nonsense", "no such trace; allowed are a workload .*h200-d.*FORMAT one of native, azure"),
        ("nonsense:x.jsonl", "no such trace"),
        ("azure:", "no such trace"),
        ("", "no such trace"),
        ("h200-e", "no such trace"),
        ("h200-a?scal=1", "scal is unknown here; allowed are seed, scale"),
        ("h200-a?duration=5", "start and duration must be given together"),
        ("h200-a?scale", "'scale' is not of the form key=value"),
        ("h200-a?scale=1&scale=2", "'scale=2' is given twice"),
        ("h200-a?scale=big", "scale is 'big'; allowed is a number"),
        ("h200-a?seed=1.5", "seed is '1.5'; allowed is a whole number"),
        ("h200-a?seed=-1", "seed is -1"),
        ("h200-a?start=5", "start and duration must be given together"),
        ("h200-a?readers=fast", "rates 'fast' cannot be read"),
        ("azure:x.csv?sort=maybe", "sort is 'maybe'; allowed is yes or no"),
        ("azure:x.csv?arrivals=poisson", "arrivals is unknown here"),
        ("sharegpt:x?arrivals=often", "arrivals 'often' is unknown; allowed are burst"),
        ("sharegpt:x?arrivals=poisson", "rate must be given"),
        ("sharegpt:x?arrivals=poisson&rate=1&cv=2", "cv is unknown here"),
        ("none.jsonl", "none.jsonl: cannot be read: No such file"),
    ],
)
def test_bad_specs(spec, problem):
    with pytest.raises(TraceError, match=problem):
        open_trace(spec)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reports_a_missing_file(name, tmp_path):
    options = {
        "sharegpt": "?arrivals=burst",
        "bench": "?arrivals=burst",
        "agent": "?think=none",
        "servegen": "?start=0&duration=1&lengths=y",
        "openai-batch": "?arrivals=burst",
    }.get(name, "")
    with pytest.raises(TraceError, match="cannot be read"):
        open_trace(f"{name}:{tmp_path / 'none.csv'}{options}")


@pytest.mark.parametrize(
    ("spec", "drawn"),
    [
        ("h200-a", "h200-a?seed=2"),
        ("h200-a?scale=0.5&seed=7", "h200-a?scale=0.5&seed=9"),
        ("day.jsonl?seed=7", None),
    ],
)
def test_workloads_are_drawn_anew(spec, drawn) -> None:
    assert other_draw(spec, 2) == drawn
