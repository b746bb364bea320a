"""How a request is refused: in SGLang's own form of an error."""

from __future__ import annotations

from typing import Any


def refusal(status: int, message: str, *, after: int | None = None) -> Any:
    """The answer to a request that cannot be served; one sentence for the client.

    Args:
        status: Of HTTP.
        message: The sentence.
        after: Seconds after which the same request may be served; None: it never will be.
    """
    from fastapi.responses import JSONResponse

    return JSONResponse(
        status_code=status,
        headers=None if after is None else {"Retry-After": str(after)},
        content={
            "error": {
                "message": message,
                "type": "invalid_request_error" if after is None else "rate_limit_error",
                "code": status,
                "retryable": after is not None,
            }
        },
    )
