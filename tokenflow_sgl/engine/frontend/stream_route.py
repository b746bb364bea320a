"""POST and DELETE /tokenflow/streams/{rid}: change a live stream's rate or weight, or end it.

With several tokenizer workers any of them answers for the streams of all.

Access is that of SGLang's /abort_request, which names a request by its id, too: with an admin key
it takes that key, else the API key if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from sglang.srt.utils.auth import AuthLevel, auth_level
from starlette.convertors import Convertor, register_url_convertor

from tokenflow_sgl.engine.config import config_of
from tokenflow_sgl.engine.frontend.messenger import messenger_of
from tokenflow_sgl.engine.frontend.number_texts import json_of_any_numbers
from tokenflow_sgl.engine.frontend.refusals import refusal
from tokenflow_sgl.engine.frontend.sibling_workers import siblings_of
from tokenflow_sgl.engine.frontend.token_deposit import read_at
from tokenflow_sgl.engine.sglang.seam_check import SeamError
from tokenflow_sgl.engine.sglang.server import Manager
from tokenflow_sgl.engine.stream_messages import Heard, StreamChange
from tokenflow_sgl.engine.tenant_setting import TENANTS_OFF
from tokenflow_sgl.engine.terms import RateError, check_rate, check_weight
from tokenflow_sgl.engine.unsupported import has_workers
from tokenflow_sgl.errors import shown

PATH = "/tokenflow/streams/{rid:any_text}"
RATE, WEIGHT = "rate", "weight"
FIELDS = f"{RATE}, {WEIGHT}, or both"


class _AnyText(Convertor[str]):
    """A part of a path that may be any text: ids of requests may have line breaks, too.

    Starlette's own `path` ends at the first one.
    """

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


def add_routes(app: FastAPI) -> None:
    """Put the routes on SGLang's application, once.

    Raises:
        SeamError: Another plugin has a route of this path.
    """
    there = [route for route in app.routes if getattr(route, "path", None) == PATH]
    for route in there:
        if getattr(route, "endpoint", None) not in (change_stream, end_stream):
            raise SeamError(f"{PATH} is a route of another plugin; the two do not work together")
    if there:
        return
    register_url_convertor("any_text", _AnyText())
    guarded = auth_level(AuthLevel.ADMIN_OPTIONAL)
    app.add_api_route(PATH, guarded(change_stream), methods=["POST"])
    app.add_api_route(PATH, guarded(end_stream), methods=["DELETE"])


def wanted(body: Any) -> StreamChange:
    """What a body asks for; raises `RateError` for everything else that it may say."""
    if not isinstance(body, Mapping):
        raise RateError(f"The body is {shown(body)}; it must be a JSON object with {FIELDS}.")
    for key in body:
        if key not in (RATE, WEIGHT):
            raise RateError(f"{shown(key)} is unknown; the body must have {FIELDS}.")
    if not body:
        raise RateError(f"{RATE} is missing, and so is {WEIGHT}; the body must have {FIELDS}.")
    return StreamChange(
        _wanted_rate(body[RATE]) if RATE in body else None,
        check_weight(body[WEIGHT], WEIGHT) if WEIGHT in body else None,
    )


def _wanted_rate(value: Any) -> float:
    if not isinstance(value, bool) and value == 0:
        return 0.0
    try:
        return check_rate(value, RATE)
    except RateError as error:
        raise RateError(f"{error} With 0 the stream rests.") from None


async def _body(request: Request) -> Any:
    """The JSON of a body; raises `RateError` for what is none, and names a number that is none."""
    try:
        return await request.json()
    except ValueError:
        body = await request.body()
    # SGLang's parser says no more than that. It takes no number that a float does not hold.
    try:
        found = json_of_any_numbers(body)
    except ValueError:
        found = None
    if isinstance(found, Mapping):
        wanted(found)
    raise RateError(f"The body is no JSON; it must be an object with {FIELDS}.")


def _manager() -> Any:
    from sglang.srt.entrypoints import http_server

    return http_server.get_global_state().tokenizer_manager


async def change_stream(rid: str, request: Request) -> Response:
    """Another rate or weight for stream `rid`, from now on."""
    manager = _manager()
    try:
        change = wanted(await _body(request))
    except RateError as error:
        return _refused(400, str(error))
    state = manager.rid_to_state.get(rid)
    if state is None and not has_workers(manager.server_args):
        return _refused(404, f"Stream {shown(rid)} is unknown: it has ended, or never began.")
    if state is not None and not getattr(state.obj, "stream", False):
        return _refused(400, f"Request {shown(rid)} does not stream, so it has no reader.")
    heard = await messenger_of(manager).change(rid, change)
    if heard is Heard.RESTED:
        return _refused(409, f"Stream {shown(rid)} goes on: {_longest_rest(manager)}")
    if heard is Heard.YES:
        if change.rate is not None:
            read_at(rid, change.rate)
            if state is None:
                siblings_of(manager).tell(rid, change.rate)
        return Response(status_code=204)
    if state is None:
        return _refused(
            404,
            f"Stream {shown(rid)} has ended, never began, or has no reader.",
        )
    return _refused(
        409, f"Stream {shown(rid)} has not reached the scheduler yet, or has just ended."
    )


def _longest_rest(manager: Manager) -> str:
    config = config_of(manager.server_args)
    longest = "" if config is None else f" for {config.longest_rest:g} s in all,"
    tenants = ""
    if config is not None and config.tenant_by != TENANTS_OFF:
        tenants = ", or as many of its tenant's streams rest as may"
    return f"it has rested{longest} as long as a stream may{tenants}."


async def end_stream(rid: str) -> Response:
    """Abort the stream with this request id."""
    manager = _manager()
    state = manager.rid_to_state.get(rid)
    if state is not None and not state.dispatched:
        # The scheduler would find nothing, and SGLang would send it no later abort of this stream.
        return _refused(409, f"Stream {shown(rid)} has not reached the scheduler yet.")
    if has_workers(manager.server_args):
        if not await messenger_of(manager).alone(rid):
            return _refused(
                404,
                f"Stream {shown(rid)} cannot be ended: it has ended or never began, or another "
                "stream's id begins like it.",
            )
        manager.abort_request(rid=rid)
        return Response(status_code=204)
    if state is None:
        return _refused(404, f"Stream {shown(rid)} is unknown: it has ended, or never began.")
    # SGLang aborts all requests whose ids begin like the one that it is told.
    for other in manager.rid_to_state:
        if other != rid and other.startswith(rid):
            return _refused(
                409,
                f"Stream {shown(rid)} cannot be ended alone: another stream's id begins like it.",
            )
    manager.abort_request(rid=rid)
    return Response(status_code=204)


def _refused(status: int, message: str) -> Response:
    answer: Response = refusal(status, message)
    return answer
