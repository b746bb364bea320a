"""What a client must hear of before SGLang takes in its request: HTTP 400.

Before SGLang's check of a request (`CHECK_END` in the ledger), which answers a ValueError so.
"""

from collections.abc import Mapping
from typing import Any

from tokenflow_sgl_emulator.timed.virtual_arrivals import ARRIVAL_KEY, parse_arrival


def check_logprobs(_manager: Any, obj: Any, *_args: Any, **_kwargs: Any) -> None:
    """An emulated device has no log-probabilities of a prompt.

    The emulated model makes up the next token only, and no profile knows what the output layer
    takes for all tokens of a prompt. Those of the answer's tokens are as made up as the tokens.

    Raises:
        ValueError: They are asked for.
    """
    start = getattr(obj, "logprob_start_len", None)
    if getattr(obj, "return_logprob", False) and start is not None and start >= 0:
        raise ValueError(
            f"logprob_start_len is {start!r}: an emulated device has no log-probabilities of a "
            "prompt; allowed is -1 (or to leave it out, as well as echo)."
        )


def check_arrival(_manager: Any, obj: Any, *_args: Any, **_kwargs: Any) -> None:
    """On a virtual clock a request may say when it arrives (`virtual_arrivals`).

    Raises:
        ValueError: It says so in a way that cannot be meant.
    """
    sampling = getattr(obj, "sampling_params", None)
    custom = sampling.get("custom_params") if isinstance(sampling, Mapping) else None
    if isinstance(custom, Mapping) and ARRIVAL_KEY in custom:
        parse_arrival(custom[ARRIVAL_KEY])
