import asyncio
import json

import pytest
from aiohttp import web

from tokenflow_sgl.demo.client import StreamRequest, run_burst


def chunk(ids, total, finish=None):
    reason = {"type": finish} if finish else None
    return {"output_ids": ids, "meta_info": {"completion_tokens": total, "finish_reason": reason}}


class Stub:
    """SGLang's /generate, one token every 20 ms; prompts tell it how to misbehave."""

    BREAKS, REFUSES, ABORTS, HANGS = 1, 2, 3, 4

    def __init__(self):
        self.bodies = []

    async def generate(self, request):
        body = await request.json()
        self.bodies.append(body)
        kind = body["input_ids"][0]
        if kind == self.REFUSES:
            return web.Response(status=400, text="bad rate")
        response = web.StreamResponse()
        await response.prepare(request)
        ids = []
        for number in range(body["sampling_params"]["max_new_tokens"]):
            await asyncio.sleep(0.02)
            ids.append(number)
            last = len(ids) == body["sampling_params"]["max_new_tokens"]
            event = chunk(ids, len(ids), "length" if last else None)
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            if kind == self.BREAKS:
                request.transport.close()
                return response
            if kind == self.HANGS:
                await asyncio.sleep(1)
            if kind == self.ABORTS:
                await response.write(b'data: {"error": {"message": "no memory"}}\n\n')
                return response
        await response.write(b"data: [DONE]\n\n")
        return response


def burst_on_stub(requests, **options):
    async def main():
        stub = Stub()
        app = web.Application()
        app.router.add_post("/generate", stub.generate)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            records = await run_burst(f"http://127.0.0.1:{port}", requests, **options)
        finally:
            await runner.cleanup()
        return stub, records

    return asyncio.run(main())


def test_every_token_gets_its_time_on_one_clock():
    requests = [
        StreamRequest((9, 9), max_new_tokens=5, rate=10.0, send_at_s=0.3),
        StreamRequest((9,), max_new_tokens=3, rate=20.0),
    ]
    seen = []
    _, (late, early) = burst_on_stub(requests, on_tokens=seen.append)
    assert early.ok and late.ok
    assert early.output_ids == [0, 1, 2]
    assert late.output_ids == [0, 1, 2, 3, 4]
    assert sum(seen) == 8
    assert late.sent_s >= 0.3 > early.sent_s
    for record in (early, late):
        assert len(record.token_times_s) == len(record.output_ids)
        assert record.token_times_s == sorted(record.token_times_s)
        assert record.ttft_s >= 0.019


def test_the_rate_and_the_length_reach_the_server():
    stub, _ = burst_on_stub([StreamRequest((9, 8), max_new_tokens=2, rate=12.5)])
    assert stub.bodies == [
        {
            "input_ids": [9, 8],
            "sampling_params": {
                "temperature": 0.0,
                "max_new_tokens": 2,
                "custom_params": {"tokenflow_rate": 12.5},
            },
            "stream": True,
        }
    ]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Stub.REFUSES, "HTTP 400: bad rate"),
        (Stub.BREAKS, "the stream broke off after 1 tokens"),
        (Stub.ABORTS, "no memory"),
    ],
)
def test_a_failing_stream_leaves_the_others_alone(kind, message):
    requests = [StreamRequest((kind,), 4, rate=10.0), StreamRequest((9,), 4, rate=10.0)]
    _, (bad, good) = burst_on_stub(requests)
    assert not bad.ok
    assert message in bad.error
    assert good.ok
    assert len(good.output_ids) == 4


def test_a_stream_that_falls_silent_is_given_up():
    _, (record,) = burst_on_stub([StreamRequest((Stub.HANGS,), 9, rate=10.0)], timeout_s=0.2)
    assert "given up: nothing came for 0.2 s" in record.error
    assert record.output_ids
