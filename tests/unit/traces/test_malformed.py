"""Every loader refuses every kind of broken file with a sentence that says where."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
from functools import partial

import pytest

from tokenflow_sgl.lab.traces import TraceError
from tokenflow_sgl.lab.traces.generators.arrivals import PoissonArrivals
from tokenflow_sgl.lab.traces.loaders import (
    Think,
    load_agent,
    load_azure,
    load_bench,
    load_burstgpt,
    load_mooncake,
    load_native,
    load_servegen,
    load_sharegpt,
)

LENGTHS = '{"client":1,"window_start_s":0,"input_tokens":{"5":1},"output_tokens":{"7":1}}\n'


def servegen_rates(path):
    lengths = path.with_name("lengths.jsonl")
    lengths.write_text(LENGTHS)
    return load_servegen(path, lengths, start_s=0, duration_s=600)


def servegen_lengths(path):
    rates = path.with_name("some_rates.csv")
    rates.write_text("client,window_start_s,rate_rps,pattern,arg1,arg2\n1,0,1,Gamma,1,1\n")
    return load_servegen(rates, path, start_s=0, duration_s=600)


CSV = {  # loader, column of time, column of tokens, row with places for both
    "burstgpt": (
        load_burstgpt,
        "Timestamp",
        "Response tokens",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "{time},ChatGPT,4,{tokens},7,API log",
        ("5", "3"),
    ),
    "azure": (
        load_azure,
        "TIMESTAMP",
        "GeneratedTokens",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "{time},4,{tokens}",
        ("2023-11-16 18:15:46.6805900", "3"),
    ),
    "sharegpt": (
        partial(load_sharegpt, arrivals=PoissonArrivals(1)),
        None,
        "num_decode_tokens",
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio",
        "4,{tokens},7,0.5",
        (None, "3"),
    ),
    "agent": (
        partial(load_agent, think=Think.gap),
        "offset_s",
        "completion_tokens",
        "instance_id,step,offset_s,created_unix,prompt_tokens,completion_tokens",
        "a,0,{time},9,4,{tokens}",
        ("5", "3"),
    ),
    "servegen": (
        servegen_rates,
        "window_start_s",
        "client",
        "client,window_start_s,rate_rps,cv,pattern,arg1,arg2",
        "{tokens},{time},1,1,Gamma,1,1",
        ("0", "1"),
    ),
}

csv_formats = pytest.mark.parametrize("name", CSV)


def open_files():
    """What this process has open."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself is closed again
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


def failure(load, path):
    with pytest.raises(TraceError) as caught:
        load(path)
    # Though the error is still there, and with it what was reading.
    assert str(path) not in open_files()
    message = str(caught.value)
    assert message.startswith(str(path)), message
    return message.removeprefix(str(path))


@csv_formats
def test_the_good_row_of_these_tests_is_good(name, write):
    load, _, _, header, row, (time, tokens) = CSV[name]
    trace = load(write(f"{header}\n{row.format(time=time, tokens=tokens)}\n"))
    assert trace.requests


@csv_formats
def test_empty_file(name, write):
    assert failure(CSV[name][0], write("")) == ": is empty; a header line is expected"


@csv_formats
def test_header_only(name, write):
    assert "has no data rows" in failure(CSV[name][0], write(CSV[name][3] + "\n"))


@csv_formats
def test_missing_column(name, write):
    load, _, column, header, row, _ = CSV[name]
    message = failure(load, write(header.replace(column, "other") + f"\n{row}\n"))
    assert message.startswith(f", line 1, column {column}: the column is missing")


@csv_formats
def test_column_twice(name, write):
    load, _, column, header, row, _ = CSV[name]
    message = failure(load, write(f"{header},{column}\n{row},1\n"))
    assert f"column {column}: the column is there more than once" in message


@csv_formats
@pytest.mark.parametrize(
    "value", ["-1", "1.5", "nan", "", "1_0", "+3", "99999999999999999999", "٣"]
)
def test_bad_count(name, value, write):
    load, _, column, header, row, (time, tokens) = CSV[name]
    lines = [header, row.format(time=time, tokens=tokens), row.format(time=time, tokens=value)]
    message = failure(load, write("\n".join(lines)))
    assert message.startswith(f", line 3, column {column}: is {value!r}; allowed is a whole number")


@pytest.mark.parametrize("name", [name for name in CSV if CSV[name][1]])
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "", "1_0", "soon"])
def test_bad_time(name, value, write):
    load, column, _, header, row, (_, tokens) = CSV[name]
    message = failure(load, write(f"{header}\n{row.format(time=value, tokens=tokens)}\n"))
    said = "a text of 4 characters" if value == "soon" else repr(value)
    assert message.startswith(f", line 2, column {column}: is {said}; allowed is a")


@csv_formats
def test_short_and_long_rows(name, write):
    load, _, _, header, row, (time, tokens) = CSV[name]
    good = row.format(time=time, tokens=tokens)
    message = failure(load, write(f"{header}\n{good.rpartition(',')[0]}\n"))
    # A column that nothing is read from may be called anything.
    last = "number 4" if name == "sharegpt" else header.rpartition(",")[2]
    assert re.match(rf", line 2, column {re.escape(last)}: the row has \d+ values", message)
    message = failure(load, write(f"{header}\n{good},x\n"))
    assert re.match(r", line 2, column number \d+: the row has \d+ values, the header", message)


@csv_formats
def test_not_utf8(name, write):
    load, _, _, header, _, _ = CSV[name]
    message = failure(load, write(header.encode() + b"\n\xff\xfe\n"))
    assert message == ", line 2: byte 1 of the line is not UTF-8 text"


@csv_formats
def test_unclosed_quote(name, write):
    load, _, _, header, _, _ = CSV[name]
    assert "is not CSV" in failure(load, write(f'{header}\n"abc\n'))


@csv_formats
def test_endless_line_is_not_read(name, endless):
    load, _, _, header, _, _ = CSV[name]
    message = failure(load, endless(header + "\n"))
    assert message == ", line 2: is longer than 65536 bytes, the most that is read"


@csv_formats
def test_missing_file_and_folder(name, tmp_path):
    load = CSV[name][0]
    assert "cannot be read: No such file" in failure(load, tmp_path / "none.csv")
    assert "cannot be read: Is a directory" in failure(load, tmp_path)


@csv_formats
def test_windows_line_ends_byte_order_mark_and_no_last_line_end(name, write):
    load, _, _, header, row, (time, tokens) = CSV[name]
    good = row.format(time=time, tokens=tokens)
    trace = load(write(f"{header}\n{good}\n"))
    assert load(write(f"\ufeff{header}\r\n{good}")).requests == trace.requests


@csv_formats
def test_compressed(name, write):
    load, _, _, header, row, (time, tokens) = CSV[name]
    text = f"{header}\n{row.format(time=time, tokens=tokens)}\n".encode()
    assert load(write(gzip.compress(text), "file.csv.gz")).requests
    assert "cannot be read" in failure(load, write(gzip.compress(text)[:-12], "cut.csv.gz"))
    assert "cannot be read" in failure(load, write(text, "plain.csv.gz"))


@pytest.mark.parametrize(
    ("load", "text", "allowed"),
    [
        (load_burstgpt, CSV["burstgpt"][3] + "\n5,a,1,1,2,b\n4,a,1,1,2,b\n", "Timestamp"),
        (
            load_azure,
            CSV["azure"][3] + "\n2023-01-01 00:00:01.1,1,1\n2023-01-01 00:00:01.0,1,1\n",
            "TIMESTAMP",
        ),
    ],
)
def test_unsorted_rows_are_refused_or_sorted_and_noted(load, text, allowed, write):
    path = write(text)
    message = failure(load, path)
    assert message.startswith(f", line 3, column {allowed}: is earlier than the row before it")
    trace = load(path, sort=True)
    assert trace.requests[0].arrival_s == 0
    assert "1 rows were out of order; rows were sorted by time." in trace.notes


# ---- JSON Lines ---------------------------------------------------------------------

HEADER = {
    "format": "tokenflow-trace",
    "version": 1,
    "name": "t",
    "requests": 1,
    "updates": 0,
    "accounting": {"rows": 1, "emitted": 1, "dropped": {}},
    "notes": [],
}
JSON = {  # loader, lines before, good row, column of a count, limit of a line
    "mooncake": (
        load_mooncake,
        "",
        {"timestamp": 0, "input_length": 3, "output_length": 2, "hash_ids": [0]},
        "output_length",
    ),
    "native": (
        load_native,
        json.dumps(HEADER) + "\n",
        {"arrival_s": 0.5, "prompt_tokens": 3, "output_tokens": 2},
        "output_tokens",
    ),
    "servegen lengths": (servegen_lengths, "", json.loads(LENGTHS), "client"),
    "bench": (
        partial(load_bench, arrivals=PoissonArrivals(1)),
        "",
        {"backend": "sglang", "input_lens": [3], "output_lens": [2], "errors": [""]},
        "output_lens",
    ),
}
json_formats = pytest.mark.parametrize("name", JSON)
counts = pytest.mark.parametrize("name", ["mooncake", "native", "servegen lengths"])


def line_of(name):
    return 2 if name == "native" else 1


@json_formats
def test_the_good_json_row_is_good(name, write):
    load, head, row, _ = JSON[name]
    assert load(write(head + json.dumps(row) + "\n\n", "file.jsonl")).requests


@json_formats
def test_empty_json_file(name, write):
    assert failure(JSON[name][0], write("", "file.jsonl")) == ": is empty"


@json_formats
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{]", "is not JSON: Expecting property name enclosed in double quotes at character 2"),
        ("[1]", "is a JSON list; allowed is an object"),
        ("3", "is a JSON number; allowed is an object"),
        ("null", "is a JSON null; allowed is an object"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON that can be used: Exceeds the limit"),
        ("[" * 200_000, "is not JSON that can be used: maximum recursion depth"),
    ],
)
def test_bad_json(name, text, problem, write):
    load, head, _, _ = JSON[name]
    message = failure(load, write(head + text, "file.jsonl"))
    assert message.startswith(f", line {line_of(name)}: {problem}")


@json_formats
def test_json_that_goes_on_in_the_next_line(name, write):
    load, head, _, _ = JSON[name]
    message = failure(load, write(head + "{\n}\n", "file.jsonl"))
    problem = "is not JSON: " if head else "begins JSON that does not end in this line; allowed is"
    assert message.startswith(f", line {line_of(name)}: {problem}")


@pytest.mark.parametrize("name", sorted(set(JSON) - {"bench"}))  # bench_serving writes them
@pytest.mark.parametrize("constant", ["NaN", "-Infinity"])
def test_what_json_does_not_have(name, constant, write):
    load, head, _, _ = JSON[name]
    message = failure(load, write(head + '{"a": ' + constant + "}", "file.jsonl"))
    problem = f"is not JSON that can be used: {constant} is no number"
    assert message.startswith(f", line {line_of(name)}: {problem}")


@json_formats
def test_missing_json_column(name, write):
    load, head, row, column = JSON[name]
    rest = {key: value for key, value in row.items() if key != column}
    message = failure(load, write(head + json.dumps(rest), "file.jsonl"))
    assert message.startswith(f", line {line_of(name)}, column {column}: the column is missing")


@counts
@pytest.mark.parametrize("value", [-1, 1.0, True, "3", None, [1], 2**31])
def test_bad_json_count(name, value, write):
    load, head, row, column = JSON[name]
    text = head + json.dumps({**row, column: value})
    message = failure(load, write(text, "file.jsonl"))
    assert message.startswith(
        f", line {line_of(name)}, column {column}: is {value!r}; allowed is a whole number"
    )


@pytest.mark.parametrize(
    ("name", "column"),
    [("mooncake", "timestamp"), ("native", "arrival_s"), ("servegen lengths", "window_start_s")],
)
@pytest.mark.parametrize("value", ["-1", "1e999", "true", '"3"', "null"])
def test_bad_json_time(name, column, value, write):
    load, head, row, _ = JSON[name]
    text = json.dumps({**row, column: "HERE"}).replace('"HERE"', value)
    message = failure(load, write(head + text, "file.jsonl"))
    assert f", line {line_of(name)}, column {column}: is " in message
    assert "allowed is a number of at least 0" in message


@json_formats
def test_not_utf8_json(name, write):
    load, head, _, _ = JSON[name]
    message = failure(load, write(head.encode() + b'{"a":"\xff"}', "file.jsonl"))
    assert message == f", line {line_of(name)}: byte 7 of the line is not UTF-8 text"


@json_formats
def test_endless_json_line_is_not_read(name, endless):
    load, head, _, _ = JSON[name]
    message = failure(load, endless(head, "endless.jsonl"))
    assert f", line {line_of(name)}: is longer than " in message


def test_unsorted_mooncake(write):
    good = JSON["mooncake"][2]
    rows = [{**good, "timestamp": time} for time in (7, 3)]
    path = write("\n".join(map(json.dumps, rows)), "file.jsonl")
    assert ", line 2, column timestamp: is earlier" in failure(load_mooncake, path)
    assert [r.arrival_s for r in load_mooncake(path, sort=True).requests] == [0.0, 0.004]


def test_long_values_are_cut_in_messages(write):
    load, _, column, header, row, (time, _) = CSV["burstgpt"]
    message = failure(load, write(f"{header}\n{row.format(time=time, tokens='x' * 5000)}\n"))
    assert column in message
    assert len(message) < 250
