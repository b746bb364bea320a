"""SGLang's HTTP application for its tokenizer workers, with our part of the front end.

With `--tokenizer-worker-num` above 1 each worker imports the application that
SGLANG_HTTP_SERVER_APP_PATH names. SGLang's own loads no plugins: no rate would be checked. It asks
for no key, either.
"""

from __future__ import annotations

from sglang.srt.entrypoints.http_server import app
from sglang.srt.plugins import load_plugins

from tokenflow_sgl.engine.frontend.worker_keys import demand_keys, launched_args
from tokenflow_sgl.engine.plugin import activate_front_end

__all__ = ["app"]

load_plugins()
activate_front_end()
demand_keys(app, launched_args())
