"""What the body of POST /tokenflow/streams/{rid} may ask for, and the sentence if it may not."""

from __future__ import annotations

import asyncio
import math
import secrets
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from ranks import Ranks

from tokenflow_sgl.engine.config import LAUNCH_ATTRIBUTE
from tokenflow_sgl.engine.frontend import stream_route
from tokenflow_sgl.engine.frontend.stream_route import wanted
from tokenflow_sgl.engine.sglang.seam_check import SeamError
from tokenflow_sgl.engine.stream_messages import StreamChange
from tokenflow_sgl.engine.terms import RateError
from tokenflow_sgl.qos.classes import LEAST_WEIGHT, MOST_WEIGHT, QosClass


@pytest.mark.parametrize(
    ("body", "change"),
    [
        ({"rate": 20}, StreamChange(rate=20.0)),
        ({"rate": 0}, StreamChange(rate=0.0)),
        ({"weight": 2}, StreamChange(weight=2.0)),
        ({"weight": LEAST_WEIGHT}, StreamChange(weight=LEAST_WEIGHT)),
        ({"rate": 0, "weight": MOST_WEIGHT}, StreamChange(rate=0.0, weight=MOST_WEIGHT)),
    ],
)
def test_rate_weight_or_both(body, change) -> None:
    assert wanted(body) == change


def refusal(body: object) -> str:
    with pytest.raises(RateError) as caught:
        wanted(body)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and len(message) < 180
    return message


@pytest.mark.parametrize(
    "bad", [0, -1, 0.0999, 10.1, math.nan, math.inf, 10**400, "2", True, None, [2], {"a": 2}]
)
def test_a_bad_weight_is_refused_as_it_is_in_a_class(bad) -> None:
    message = refusal({"weight": bad})
    assert message.startswith("weight is ")
    assert message.endswith("; it must be a number between 0.1 and 10.")
    with pytest.raises(ValueError, match="weight is"):
        QosClass("own", 10.0, weight=bad)


def test_nothing_holds_if_one_of_the_two_is_bad() -> None:
    assert refusal({"rate": 20, "weight": 11}).startswith("weight is 11;")
    assert refusal({"rate": -1, "weight": 2}).startswith("rate is -1;")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "rate is missing, and so is weight; the body must have rate, weight, or both."),
        ({"claim": 2}, "'claim' is unknown; the body must have rate, weight, or both."),
        ([1], "The body is [1]; it must be a JSON object with rate, weight, or both."),
        (None, "The body is None; it must be a JSON object with rate, weight, or both."),
    ],
)
def test_a_body_that_says_something_else(body, said) -> None:
    assert refusal(body) == said


class Manager(Ranks):
    """One of some tokenizer workers; this one has no stream at first."""

    def __init__(self, *rids_of_ranks: tuple[str, ...], workers: int = 2) -> None:
        super().__init__(*rids_of_ranks)
        self.server_args = SimpleNamespace(
            tokenizer_worker_num=workers, **{LAUNCH_ATTRIBUTE: secrets.token_hex(8)}
        )
        self.rid_to_state: dict[str, object] = {}
        self.aborted: list[str] = []

    def abort_request(self, rid: str) -> None:
        self.aborted.append(rid)


def answer(manager: Manager, rid: str, body: object = None) -> int:
    async def ask() -> int:
        if body is None:
            return (await stream_route.end_stream(rid)).status_code
        request = SimpleNamespace(json=lambda: asyncio.sleep(0, body))
        return (await stream_route.change_stream(rid, request)).status_code

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_route, "_manager", lambda: manager)
        return asyncio.run(ask())


def test_a_worker_answers_for_the_streams_of_all() -> None:
    manager = Manager(("theirs",))
    assert answer(manager, "theirs", {"rate": 5}) == 204
    assert manager.heard == [{"tokenflow_rate:theirs": 5.0}]
    assert answer(manager, "theirs") == 204
    assert manager.aborted == ["theirs"]


def test_a_stream_that_no_worker_has_is_unknown() -> None:
    manager = Manager(("theirs",))
    assert answer(manager, "gone", {"rate": 5}) == 404
    assert answer(manager, "gone") == 404
    assert manager.aborted == []


def test_a_stream_on_another_rank_keeps_one_from_being_ended_that_it_begins_like() -> None:
    manager = Manager(("user-1",), ("user-12",))
    assert answer(manager, "user-1") == 404
    assert manager.aborted == []
    assert answer(manager, "user-12") == 204
    assert manager.aborted == ["user-12"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_is_not_ended_before_it_has_reached_the_scheduler(workers) -> None:
    """SGLang would remember the abort, though it ends nothing, and send no other."""
    manager = Manager(("early",), workers=workers)
    manager.rid_to_state["early"] = state = SimpleNamespace(dispatched=False)
    assert answer(manager, "early") == 409
    assert manager.aborted == []
    state.dispatched = True
    assert answer(manager, "early") == 204
    assert manager.aborted == ["early"]


def test_a_route_of_another_plugin_with_the_same_path_is_refused() -> None:
    app = FastAPI()
    stream_route.add_routes(app)
    stream_route.add_routes(app)  # a second engine of the process
    assert sum(getattr(route, "path", None) == stream_route.PATH for route in app.routes) == 2
    taken = FastAPI()
    taken.post("/tokenflow/streams/{rid:any_text}")(lambda rid: rid)
    with pytest.raises(SeamError, match="is a route of another plugin"):
        stream_route.add_routes(taken)
