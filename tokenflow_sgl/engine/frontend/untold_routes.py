"""Routes of SGLang that generate text and hand no `custom_params` on.

They are /v1/responses, /v1/messages and Ollama's /api/chat and /api/generate. SGLang drops there
what it does not know, so a client would believe that its rate holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import HTTPException

from tokenflow_sgl.engine.config import config_of
from tokenflow_sgl.engine.frontend.validate import json_of, note_tenant
from tokenflow_sgl.engine.terms import RateError, is_ours
from tokenflow_sgl.errors import shown

HANDLERS = (
    "sglang.srt.entrypoints.openai.serving_responses:OpenAIServingResponses.create_responses",
    "sglang.srt.entrypoints.anthropic.serving:AnthropicServing.handle_messages",
    "sglang.srt.entrypoints.ollama.serving:OllamaServing.handle_chat",
    "sglang.srt.entrypoints.ollama.serving:OllamaServing.handle_generate",
)
"""What serves them. Each takes the parsed request, and Starlette's."""
_PLACES = ("custom_params", "metadata", "sampling_params", "options")
"""Fields of a body in which clients of some route give keys of ours, or might."""


def check_untold(body: Any) -> None:
    """Raise `RateError` for a key of ours anywhere in the body of such a route."""
    if not isinstance(body, Mapping):
        return
    for where, fields in (("the request", body), *((place, body.get(place)) for place in _PLACES)):
        for key, value in fields.items() if isinstance(fields, Mapping) else ():
            if is_ours(key):
                raise RateError(
                    f"{shown(key)} in {where} is {shown(value)}; it must be left out, "
                    "because this route takes no rate, class or objective: the server's default "
                    "holds."
                )


async def refuse_terms(
    original: Callable[..., Any], serving: Any, obj: Any, request: Any = None, *rest: Any, **kw: Any
) -> Any:
    """Around each of `HANDLERS`. SGLang makes of the error what clients of the route expect."""
    from sglang.srt.entrypoints import http_server

    manager = http_server.get_global_state().tokenizer_manager
    if request is not None and config_of(manager.server_args) is not None:
        try:
            check_untold(await json_of(request))
        except RateError as error:
            raise HTTPException(400, str(error)) from None
        await note_tenant(manager, request)
    return await original(serving, obj, request, *rest, **kw)
