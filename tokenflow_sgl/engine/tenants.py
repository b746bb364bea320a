"""Who asks: from what an operator chose of a request to the tenant that the scheduler knows.

The front end finds the key (an API key, the body's `user`, or a header that a gateway sets), and
hands it on under `TENANT_KEY` in `custom_params`, where no client can: there it is refused. A key
that the class file names goes as it is. Any other one goes only as a hash under a secret of the
launch, so that no key of a client is in messages, logs or metrics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from tokenflow_sgl.engine.config import TENANT_ATTRIBUTE, TokenFlowConfig
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.tenant_setting import API_KEY, HEADER, USER
from tokenflow_sgl.engine.terms import TENANT_KEY
from tokenflow_sgl.qos.classes import Tenant

_NAMED, _HASHED = "name:", "hash:"
_DIGEST = 16
"""Bytes of a hash."""
_asks: ContextVar[str | None] = ContextVar("tokenflow_tenant", default=None)
"""Who asks, in the task that serves a request."""


def key_of(by: str, headers: Mapping[str, str], body: Any) -> str:
    """The key of who sent a request; "": it says none, and those who do not are one tenant.

    Args:
        by: As of the setting `tenant_by`.
        headers: Of the request; names are looked up in small letters.
        body: Its JSON; None: it is none.
    """
    if by == USER:
        user = body.get("user") if isinstance(body, Mapping) else None
        return user if isinstance(user, str) else ""
    if by == API_KEY:
        given = headers.get("authorization", "")
        scheme, _, token = given.strip().partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
        return headers.get("x-api-key", "").strip()
    return headers.get(by.removeprefix(HEADER), "").strip()


def asks(config: TokenFlowConfig, args: ServerArgs, headers: Mapping[str, str], body: Any) -> None:
    """Note who asks in the task that serves the request."""
    key = key_of(config.tenant_by, headers, body)
    if not key:
        _asks.set(_HASHED)
    elif key in config.known_classes.tenants:
        _asks.set(_NAMED + key)
    else:
        secret = str(getattr(args, TENANT_ATTRIBUTE)).encode()
        digest = hashlib.blake2b(key.encode(), key=secret, digest_size=_DIGEST)
        _asks.set(_HASHED + digest.hexdigest())


def who_asks() -> str | None:
    """The tenant of the request that is served in this task, as the scheduler knows it.

    None: tenants are not told apart.
    """
    said = _asks.get()
    return None if said is None else said.removeprefix(_NAMED)


def hand_on(obj: Any) -> None:
    """Add who asks to SGLang's request, for the scheduler."""
    if (said := _asks.get()) is None or not hasattr(obj, "stream"):
        return
    obj.sampling_params = _with(obj.sampling_params, said)


def _with(params: Any, said: str) -> Any:
    if isinstance(params, list):
        return [_with(each, said) for each in params]
    params = {} if params is None else params
    if not isinstance(params, dict):
        return params
    custom = params.get("custom_params")
    if custom is not None and not isinstance(custom, Mapping):
        return params  # SGLang's to judge
    return {**params, "custom_params": {**(custom or {}), TENANT_KEY: said}}


def take_tenant(req: Req) -> str:
    """In the scheduler: the key of who asks, which the request does not have any more."""
    params = req.sampling_params.custom_params
    if not isinstance(params, dict):
        return ""
    said = params.pop(TENANT_KEY, "")
    if not isinstance(said, str):
        return ""
    # The hash keeps its word before it: no client's key is mistaken for a name.
    return said.removeprefix(_NAMED) if said.startswith(_NAMED) else said


def too_many(granted: Tenant) -> str:
    """What a client is told whose tenant has as many streams as it may."""
    return (
        f"Your tenant has {granted.streams} requests in this server, as many as it may; send this "
        "one again when one of them has ended."
    )
