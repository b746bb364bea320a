"""The routes of live streams on an application: which ids they take, and which keys they demand."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from ranks import Ranks
from sglang.srt.entrypoints.http_server import ORJSONRoute
from starlette.testclient import TestClient

from tokenflow_sgl.engine.config import LAUNCH_ATTRIBUTE
from tokenflow_sgl.engine.frontend import stream_route
from tokenflow_sgl.engine.frontend.worker_keys import demand_keys

# SGLang's answer to a wrong key.
pytestmark = pytest.mark.filterwarnings("ignore:ORJSONResponse is deprecated")

ANY_NAME = "any/name: of\ntwo lines\n?#%\r\u2028é"


class Manager(Ranks):
    """SGLang's TokenizerManager of one of two workers."""

    def __init__(self, *rids: str) -> None:
        super().__init__(rids)
        self.server_args = SimpleNamespace(
            tokenizer_worker_num=2, **{LAUNCH_ATTRIBUTE: secrets.token_hex(8)}
        )
        self.rid_to_state: dict[str, object] = {}
        self.aborted: list[str] = []

    def abort_request(self, rid: str) -> None:
        self.aborted.append(rid)


@pytest.fixture
def manager(monkeypatch) -> Manager:
    made = Manager("known", ANY_NAME)
    monkeypatch.setattr(stream_route, "_manager", lambda: made)
    return made


def client(api_key: str | None = None, admin_api_key: str | None = None) -> TestClient:
    app = FastAPI()
    app.router.route_class = ORJSONRoute
    stream_route.add_routes(app)
    demand_keys(app, SimpleNamespace(api_key=api_key, admin_api_key=admin_api_key))

    @app.get("/health")
    def health() -> str:
        return "fine"

    return TestClient(app)


@pytest.fixture(autouse=True)
def _no_loop_is_left() -> Iterator[None]:
    yield
    asyncio.set_event_loop(None)


def answers(asked: TestClient, rid: str, key: str | None = None) -> tuple[int, int]:
    """HTTP status of POST and of DELETE."""
    path = f"/tokenflow/streams/{quote(rid, safe='')}"
    headers = {} if key is None else {"authorization": key}
    with asked:
        changed = asked.post(path, json={"rate": 5}, headers=headers).status_code
        return changed, asked.delete(path, headers=headers).status_code


def test_an_id_may_be_any_text(manager) -> None:
    assert answers(client(), ANY_NAME) == (204, 204)
    assert manager.heard[0] == {f"tokenflow_rate:{ANY_NAME}": 5.0}
    assert manager.aborted == [ANY_NAME]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"rate": 1e400}', "rate is 1e400; it must be between 0.1 and 1000 tokens per second."),
        ('{"weight": -1e400}', "weight is -1e400; it must be a number between 0.1 and 10."),
        ('{"rate": NaN}', "rate is nan; it must be between 0.1 and 1000 tokens per second."),
        (f'{{"rate": {"9" * 400}}}', f"rate is {'9' * 57}...; it must be between 0.1 and 1000"),
        (f'{{"weight": {"9" * 9000}}}', f"weight is {'9' * 57}...; it must be a number"),
        (f'{{"rate": {"9" * 100}}}', "rate is 1e+100; it must be between 0.1 and 1000"),
        ('{"rate": 5', "The body is no JSON; it must be an object with rate, weight, or both."),
        ("1e400", "The body is no JSON;"),
        ("[" * 5000, "The body is no JSON;"),
        ('{"rate":' + "[" * 1000 + "]" * 1000 + "}", "rate is "),
        ('{"rate": 5}\x00', "The body is no JSON;"),
    ],
    ids=range(11),
)
def test_a_bad_number_is_named_with_its_field(manager, body, said) -> None:
    with client() as asked:
        answer = asked.post("/tokenflow/streams/known", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(said)
    assert manager.heard == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_what_sglang_takes_for_no_json_is_none(manager, encoding) -> None:
    with client() as asked:
        answer = asked.post("/tokenflow/streams/known", content='{"rate": 5}'.encode(encoding))
    assert (answer.status_code, manager.heard) == (400, [])


@pytest.mark.parametrize("key", [None, "Bearer user", "boss", "Basic boss", "Bearer boss "])
def test_a_worker_lets_no_stream_be_changed_without_the_admin_key(manager, key) -> None:
    assert answers(client("user", "boss"), "known", key) == (401, 401)
    assert answers(client(None, "boss"), ANY_NAME, key) == (401, 401)
    assert (manager.heard, manager.aborted) == ([], [])


@pytest.mark.parametrize(("api_key", "admin"), [(None, "boss"), ("user", "boss"), ("boss", None)])
def test_a_worker_takes_the_key_that_one_worker_takes(manager, api_key, admin) -> None:
    asked = client(api_key, admin)
    assert answers(asked, "known", "Bearer boss") == (204, 204)
    assert asked.get("/health").status_code == 200, "probes have no key"


def test_without_a_key_a_worker_demands_none(manager) -> None:
    assert answers(client(), "known") == (204, 204)
