"""The keys of a launch, in each of its tokenizer workers.

SGLang puts its check of keys on the application of a server with one tokenizer worker only: with
several, --admin-api-key would protect neither our routes nor those of SGLang that end or change a
stream (/abort_request, /set_internal_state). So each worker gets SGLang's own check.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from sglang.srt.managers.multi_tokenizer_mixin import (
    get_main_process_id,
    read_from_shared_memory,
)
from sglang.srt.utils.auth import add_api_key_middleware


def launched_args() -> Any:
    """What the server was started with (SGLang's ServerArgs), as a worker finds it.

    Raises:
        FileNotFoundError: This process is no tokenizer worker of a launch.
    """
    # The same place in which SGLang's init_multi_tokenizer looks, which is too late for us: an
    # application takes no middleware once it has begun.
    _, args, _ = read_from_shared_memory(f"multi_tokenizer_args_{get_main_process_id()}")
    return args


def demand_keys(app: FastAPI, args: Any) -> None:
    """Let the application ask for the keys of the launch, as with one worker.

    Args:
        app: SGLang's, before it has served anything.
        args: SGLang's ServerArgs. Without a key in them nothing is asked for.
    """
    if args.api_key or args.admin_api_key:
        add_api_key_middleware(app, api_key=args.api_key, admin_api_key=args.admin_api_key)
