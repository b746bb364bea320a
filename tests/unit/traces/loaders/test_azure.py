"""What the loader makes of Azure files, by hand."""

from __future__ import annotations

import pytest

from tokenflow_sgl.lab.traces import TraceError
from tokenflow_sgl.lab.traces.loaders import load_azure

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


def test_azure_keeps_every_digit_of_a_time(write):
    text = AZURE + "2023-11-16 23:59:59.9999999,374,44\r\n2023-11-17 00:00:00.0000001,396,109"
    trace = load_azure(write(text))
    assert [r.arrival_s for r in trace.requests] == [0.0, 2e-7]
    assert trace.requests[1].output_tokens == 109


def test_azure_with_zones(write):
    text = AZURE + "2024-05-10 00:00:00.009930+00:00,1,2\n2024-05-10 02:00:01+02:00,1,2\n"
    assert load_azure(write(text)).requests[1].arrival_s == pytest.approx(0.99007, abs=1e-12)


@pytest.mark.parametrize(
    "time", ["2024-05-10 00:00:01Z", "2024-13-10 00:00:00", "10/05/2024", "2024-05-10 25:00:00"]
)
def test_azure_refuses_bad_times_and_mixed_zones(time, write):
    with pytest.raises(TraceError, match="line 3, column TIMESTAMP"):
        load_azure(write(f"{AZURE}2024-05-10 00:00:00,1,2\n{time},1,2\n"))


@pytest.mark.parametrize("header", ["", "TIMESTAMP, ContextTokens, GeneratedTokens\n"])
def test_azure_as_inference_perf_takes_it(header, write):
    text = f"{header}2023-01-01 00:00:00.000, 150, 200\n\n2023-01-01T00:00:05.500, 300, 150\n"
    first, second = load_azure(write(text)).requests
    assert (first.arrival_s, first.prompt_tokens, first.output_tokens) == (0.0, 150, 200)
    assert (second.arrival_s, second.prompt_tokens, second.output_tokens) == (5.5, 300, 150)


def test_azure_without_a_header_has_its_three_columns(write):
    with pytest.raises(TraceError, match="line 1, column GeneratedTokens: the row has 2 values"):
        load_azure(write("2023-01-01 00:00:00, 150\n"))


def test_azure_drops_requests_without_output(write):
    text = AZURE + "2023-11-16 00:00:00,1,0\n2023-11-16 00:00:03,1,2\n"
    trace = load_azure(write(text))
    assert trace.accounting.dropped == {"no output tokens": 1}
    assert trace.requests[0].arrival_s == 3.0


@pytest.mark.parametrize("time", ["0001-01-01 00:00:00+05:00", "9999-12-31 23:00:00-05:00"])
def test_a_time_that_its_zone_puts_out_of_range_is_refused(time, write):
    path = write(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{time},5,5\n")
    with pytest.raises(TraceError, match="line 2, column TIMESTAMP: is '"):
        load_azure(path)
