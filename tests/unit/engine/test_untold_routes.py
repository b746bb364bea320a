"""Routes that hand no custom_params on: what of ours stands in a request is not dropped unseen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.entrypoints import http_server
from starlette.testclient import TestClient

from tokenflow_sgl.engine.config import ATTRIBUTE, TokenFlowConfig
from tokenflow_sgl.engine.frontend.untold_routes import check_untold, refuse_terms
from tokenflow_sgl.engine.terms import RateError

pytestmark = pytest.mark.filterwarnings("ignore:ORJSONResponse is deprecated")

MESSAGES = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
RESPONSES = {"input": "hi"}
SAID = (
    "'tokenflow_rate' in custom_params is 20; it must be left out, because this route takes no "
    "rate, class or objective: the server's default holds."
)


async def served(_serving: object, _obj: object, _request: object) -> dict[str, str]:
    return {"id": "served"}


class Serving:
    """What SGLang has of such a route."""

    async def create_responses(self, obj: Any, request: Any) -> Any:
        return await refuse_terms(served, self, obj, request)

    handle_messages = create_responses


@pytest.fixture
def client(monkeypatch, request) -> TestClient:
    """SGLang's application; the scheduler is on unless a test says otherwise."""
    args = SimpleNamespace(**getattr(request, "param", {ATTRIBUTE: TokenFlowConfig()}))
    state = SimpleNamespace(tokenizer_manager=SimpleNamespace(server_args=args))
    monkeypatch.setattr(http_server, "_global_state", state)
    for name in ("openai_serving_responses", "anthropic_serving"):
        monkeypatch.setattr(http_server.app.state, name, Serving(), raising=False)
    return TestClient(http_server.app)


@pytest.mark.parametrize(("path", "body"), [("responses", RESPONSES), ("messages", MESSAGES)])
def test_a_rate_is_refused_as_the_route_refuses(client, path, body) -> None:
    asked = {**body, "custom_params": {"mine": 1, "tokenflow_rate": 20}}
    answer = client.post(f"/v1/{path}", json=asked)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, SAID)
    assert ("type" in answer.json()) == (path == "messages"), "as Anthropic's API has it"
    answer = client.post(f"/v1/{path}", json={**body, "custom_params": {"mine": 1}})
    assert answer.json() == {"id": "served"}


@pytest.mark.parametrize("client", [{}], indirect=True)
def test_without_the_scheduler_all_is_served(client) -> None:
    asked = {**RESPONSES, "tokenflow_rate": 20}
    assert client.post("/v1/responses", json=asked).json() == {"id": "served"}


@pytest.mark.parametrize("place", ["custom_params", "metadata", "sampling_params", "options"])
@pytest.mark.parametrize("key", ["tokenflow_class", "Tokenflow-Rte"])
def test_every_key_of_ours_in_any_place(place, key) -> None:
    for body, where in (({key: "x"}, "the request"), ({place: {"a": 1, key: "x"}}, place)):
        with pytest.raises(RateError) as caught:
            check_untold(body)
        assert str(caught.value).startswith(f"{key!r} in {where} is 'x'; it must be left out")


@pytest.mark.parametrize("body", [None, [], {}, {"metadata": ["tokenflow_rate"]}, {"rate": 5}])
def test_what_is_none_of_ours_is_left_alone(body) -> None:
    check_untold(body)
