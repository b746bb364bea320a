import asyncio
import json

import pytest

from tokenflow_sgl.lab.replay import ReplayError, find_target
from tokenflow_sgl.lab.replay.replay_options import TargetError
from tokenflow_sgl.lab.replay.target import Target, words_to_tokens

EMULATED = {
    "version": "0.5.23",
    "api_key": "SECRET",
    "launch_command": "launch --api-key SECRET",
    "max_total_num_tokens": 5000,
    "tokenflow_eta": 1.1,
    "internal_states": [
        {
            "emulated_device": {
                "device": "h200",
                "model": "qwen3-8b",
                "time_dilation": 2.5,
                "steps": 0,
                "late_steps": 0,
                "token": "SECRET",
            }
        }
    ],
}


def ask_stub(stub, question, **behaviour):
    async def main():
        async with stub.serve(stub.Behaviour(**behaviour)) as (server, url):
            return await question(server, url)

    return asyncio.run(main())


def found(stub, **behaviour):
    return ask_stub(stub, lambda _, url: find_target(url), **behaviour)


def test_a_server_says_what_it_is_and_secrets_are_left_out(stub):
    target = found(stub, server_info=EMULATED, vocabulary=500)
    assert (target.model, target.vocabulary, target.time_scale) == ("tiny", 500, 2.5)
    assert target.known == {
        "model_path": "/models/tiny",
        "served_model_name": "tiny",
        "server": {"version": "0.5.23", "max_total_num_tokens": 5000, "tokenflow_eta": 1.1},
    }
    assert target.device["device"] == "h200"
    assert "SECRET" not in json.dumps([target.known, target.device])


def test_the_key_is_sent_and_not_shown(stub):
    async def question(server, url):
        return server, await find_target(url, api_key="SECRET")

    server, target = ask_stub(stub, question)
    assert {headers["authorization"] for headers in server.headers} == {"Bearer SECRET"}
    assert "SECRET" not in repr(target)


@pytest.mark.parametrize(
    ("usage", "known"),
    [({"kvcache": 12.5, "weight": 1.0}, 12.5), ({"kvcache": 0}, None), ("?", None), (None, None)],
)
def test_the_size_of_the_kv_memory_is_taken_over(stub, usage, known):
    info = {"version": "1", "internal_states": [{"memory_usage": usage}]}
    assert found(stub, server_info=info).known["server"].get("kv_cache_gb") == known


def test_another_server_stays_unknown(stub):
    target = found(stub, vocabulary=None)
    assert (target.model, target.vocabulary, target.time_scale) == (None, None, 1.0)
    assert (target.known, target.device) == ({}, {})


def test_a_stated_vocabulary_is_believed(stub):
    assert found(stub, server_info={"vocab_size": 77}, vocabulary=None).vocabulary == 77


@pytest.mark.parametrize("states", [None, [], {}, [None], [{}], [{"emulated_device": None}], ["x"]])
def test_no_emulated_device(stub, states):
    assert found(stub, server_info={"internal_states": states or []}).time_scale == 1.0


@pytest.mark.parametrize("dilation", [0, -1.0, "2", None])
def test_time_cannot_pass_in_any_way(stub, dilation):
    info = {"internal_states": [{"emulated_device": {"time_dilation": dilation}}]}
    with pytest.raises(ReplayError, match=r"time_dilation .*; allowed is a number above 0"):
        found(stub, server_info=info)


def test_nobody_there(stub):
    async def question(server, url):
        return url

    gone = ask_stub(stub, question)
    said = rf"no server answers at {gone} \(Connection refused\): is it up"
    with pytest.raises(TargetError, match=said) as raised:
        asyncio.run(find_target(gone))
    assert "ssl" not in str(raised.value)


@pytest.mark.parametrize("url", ["", "127.0.0.1", "ftp://127.0.0.1", "http://", "http://["])
def test_what_is_no_address(url):
    with pytest.raises(ReplayError, match="allowed is http://HOST") as raised:
        asyncio.run(find_target(url))
    assert not isinstance(raised.value, TargetError)


def test_words_are_measured_in_the_servers_tokens(stub):
    async def question(server, url):
        return await words_to_tokens(await find_target(url), seed=0)

    per_word, overhead = ask_stub(stub, question, prompt_factor=1.5, template_tokens=12)
    assert per_word == pytest.approx(1.5)
    assert overhead == pytest.approx(12)


@pytest.mark.parametrize(
    ("failure", "words"), [("cut", "short chat"), ("no JSON", "a chunk cannot be read")]
)
def test_words_of_a_server_that_breaks_off_are_a_sentence(failure, words):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        if failure == "no JSON":
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: {half\n\n")
        writer.close()

    async def main():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await words_to_tokens(Target(f"http://127.0.0.1:{port}"), seed=0)

    with pytest.raises(TargetError, match=words):
        asyncio.run(main())


def test_words_of_a_server_that_fails_are_not_known(stub):
    async def question(server, url):
        return await words_to_tokens(await find_target(url), seed=0)

    assert ask_stub(stub, question, failures={0: "500"}) is None
