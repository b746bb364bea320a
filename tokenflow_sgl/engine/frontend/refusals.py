"""How a request is refused: in SGLang's own form of an error."""

from __future__ import annotations

from typing import Any


def refusal(status: int, message: str) -> Any:
    """The answer to a request that cannot be served; one sentence for the client."""
    from fastapi.responses import JSONResponse

    return JSONResponse(
        status_code=status,
        content={
            "error": {
                "message": message,
                "type": "invalid_request_error",
                "code": status,
                "retryable": False,
            }
        },
    )
