"""Refuses a request with a bad rate or objective at the front end, before it costs anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tokenflow_sgl.engine.config import TokenFlowConfig, config_of
from tokenflow_sgl.engine.frontend.absolute_deadlines import with_seconds
from tokenflow_sgl.engine.frontend.front_door import (
    AGAIN,
    BusyError,
    let_in,
    pass_door,
    retry_after_of,
)
from tokenflow_sgl.engine.frontend.refusals import refusal
from tokenflow_sgl.engine.frontend.slo_headers import add_to_body, add_to_sampling, objectives_of
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.server import Manager
from tokenflow_sgl.engine.tenant_setting import TENANTS_OFF, USER
from tokenflow_sgl.engine.tenants import asks, hand_on
from tokenflow_sgl.engine.terms import (
    DEPOSIT_KEY,
    MAX_WAIT_KEY,
    NOT_STREAMED,
    RateError,
    check_own,
    check_place,
    class_of,
)
from tokenflow_sgl.qos.classes import QosClass, QosClasses


def check_rates(obj: Any, config: TokenFlowConfig) -> None:
    """Raise `RateError` if any of a generate request's sampling parameters has a bad rate."""
    params = getattr(obj, "sampling_params", None)
    for each in params if isinstance(params, list) else [params]:
        if isinstance(each, dict):
            check_place(each, "sampling_params")
            check_own(each.get("custom_params"))
            class_of(each.get("custom_params"), config.known_classes)


def terms_of(req: Req, classes: QosClasses, other: str | None = None) -> QosClass:
    """In the scheduler: how a request is read, as its client has stated it.

    One with bad terms that came around the front end is ended: it is answered as there, with HTTP
    400, and costs one step of one token. gRPC clients come so, and workers of the HTTP server that
    load no plugins.

    Args:
        req: SGLang's.
        classes: What it may name.
        other: What serves in place of SGLang's HTTP server in Python, which delivers deposits.
    """
    try:
        asked = class_of(req.sampling_params.custom_params, classes)
        if other is not None and asked.deposit and req.stream:
            raise RateError(
                f"{DEPOSIT_KEY} is true; it must be false with {other}: token deposits are "
                "delivered in SGLang's HTTP server in Python, which does not run."
            )
        if other is not None and asked.max_wait:
            raise RateError(
                f"{MAX_WAIT_KEY} is {asked.max_wait:g}; it must be 0 with {other}: requests are "
                "refused in SGLang's HTTP server in Python, which does not run."
            )
    except RateError as error:
        req.set_finish_with_abort(str(error))
        return classes.default
    return asked if req.stream else dataclasses.replace(NOT_STREAMED, deadline=asked.deadline)


async def check_body(request: Any) -> None:
    """Raise `RateError` for keys of ours at the top of a JSON body, which SGLang drops unread.

    request: Starlette's, with a body that SGLang has decoded already, or what its gRPC server has
        instead, which keeps no body.
    """
    body = await json_of(request)
    if isinstance(body, Mapping):
        check_place(body, "the request")
        metadata = body.get("metadata")
        if isinstance(metadata, Mapping):
            check_place(metadata, "metadata")


async def json_of(request: Any) -> Any:
    """The body of such a request; None: it is no JSON."""
    return await request.json() if _has_json(request) else None


def _has_json(request: Any) -> bool:
    """Whether SGLang decoded a JSON body: the one of a form (audio to transcribe) is used up.

    FastAPI decodes JSON under these content types, and where none is set.
    """
    given: str = request.headers.get("content-type") or "application/json"
    kind, _, subtype = given.partition(";")[0].strip().lower().partition("/")
    is_json = kind == "application" and (subtype == "json" or subtype.endswith("+json"))
    return is_json and hasattr(request, "json")


def _settle_deadlines(obj: Any) -> None:
    """Have deadlines that are moments in seconds from now; raises `RateError` for a bad one."""
    if hasattr(obj, "sampling_params"):
        obj.sampling_params = with_seconds(obj.sampling_params)


def check_generate(
    manager: Manager, obj: Any, request: Any = None, *_args: Any, **_kwargs: Any
) -> None:
    """Before TokenizerManager.generate_request: its callers answer ValueError with HTTP 400.

    One that would wait too long is answered with HTTP 429, as its callers do with HTTPException.
    """
    config = config_of(manager.server_args)
    if config is not None:
        _settle_deadlines(obj)
        check_rates(obj, config)
        let_in(manager, obj, request)
        if config.tenant_by != TENANTS_OFF:
            hand_on(obj)


async def note_tenant(manager: Manager, request: Any) -> None:
    """Find out who asks, where tenants are told apart; request: as of `check_body`."""
    config = config_of(manager.server_args)
    if config is not None and config.tenant_by != TENANTS_OFF:
        body = await json_of(request) if config.tenant_by == USER else None
        asks(config, manager.server_args, request.headers, body)


async def check_http(
    original: Callable[..., Any], obj: Any, request: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around the /generate route: a stream would have sent its HTTP 200 before the checks above."""
    from fastapi import HTTPException
    from sglang.srt.entrypoints import http_server

    state = http_server.get_global_state()
    config = config_of(state.tokenizer_manager.server_args)
    if config is None:
        return await original(obj, request, *args, **kwargs)
    try:
        await check_body(request)
        asked = objectives_of(request.headers)
        obj.sampling_params = add_to_sampling(obj.sampling_params, asked)
        _settle_deadlines(obj)
        check_rates(obj, config)
        await note_tenant(state.tokenizer_manager, request)
        pass_door(state.tokenizer_manager, obj)
    except RateError as error:
        return refusal(400, str(error))
    except BusyError as error:
        return refusal(429, str(error), after=error.after)
    try:
        return await original(obj, request, *args, **kwargs)
    except HTTPException as error:
        if error.status_code != 429:
            raise
        # The scheduler's: its tenant had as many streams as it may by then.
        return refusal(429, error.detail, after=AGAIN)


async def check_openai(
    original: Callable[..., Any], serving: Any, obj: Any, request: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around OpenAI's routes, whose models drop keys that they do not know, and headers."""
    manager = serving.tokenizer_manager
    if config_of(manager.server_args) is not None:
        try:
            await check_body(request)
            add_to_body(obj, objectives_of(request.headers))
        except RateError as error:
            return serving.create_error_response(str(error))
        await note_tenant(manager, request)
    answer = await original(serving, obj, request, *args, **kwargs)
    if getattr(answer, "status_code", None) == 429:
        # It is the scheduler's where the door has let it in.
        answer.headers["Retry-After"] = str(retry_after_of(request) or AGAIN)
    return answer
