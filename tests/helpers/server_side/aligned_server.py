"""Starts SGLang as it is with flashinfer and deterministic inference: chunks are whole pieces.

The CPU platform has no flashinfer; TOKENFLOW_TEST_ALIGN is the piece, in tokens.
"""

from __future__ import annotations

import os
import sys

from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args


def cut_into_pieces(self) -> None:
    self.truncation_align_size = int(os.environ["TOKENFLOW_TEST_ALIGN"])


Scheduler.init_deterministic_inference_config = cut_into_pieces

if __name__ == "__main__":
    load_plugins()
    args = prepare_server_args(sys.argv[1:])
    from sglang.launch_server import run_server

    run_server(args)
