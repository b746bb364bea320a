"""Use the scheduler without an HTTP server, in SGLang's offline engine.

    python examples/offline_engine.py --model-path Qwen/Qwen3-8B

`tokenflow_sgl.Engine` is `sglang.Engine` with `--scheduler` and the `--tokenflow-*` flags as
keywords. The scheduler serves readers, so the answers are streamed here: an answer that is not
streamed has no reader, and is paused only when memory is short. Each prompt has a rate of its own,
in tokens per second.
"""

from __future__ import annotations

import argparse
import asyncio

import tokenflow_sgl

PROMPTS = {"Once upon a time": 5.0, "The capital of France is": 10.0, "To bake bread,": 20.0}
"""Each with the rate of its reader."""


async def read(engine: tokenflow_sgl.Engine, prompt: str, rate: float, max_tokens: int) -> str:
    """Ask for one answer and take it as it is generated."""
    sampling = {"max_new_tokens": max_tokens, "custom_params": {"tokenflow_rate": rate}}
    text = ""
    async for chunk in await engine.async_generate(prompt, sampling, stream=True):
        text = chunk["text"]  # all of the answer so far
    return text


async def read_all(engine: tokenflow_sgl.Engine, max_tokens: int) -> list[str]:
    """Ask for all answers at once."""
    asked = (read(engine, prompt, rate, max_tokens) for prompt, rate in PROMPTS.items())
    return await asyncio.gather(*asked)


def main() -> None:
    """Print the answer to each prompt."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model-path", required=True, help="folder or name of the model")
    parser.add_argument("--max-tokens", type=int, default=100, help="length of an answer at most")
    given = parser.parse_args()

    with tokenflow_sgl.Engine(
        model_path=given.model_path, scheduler="tokenflow", tokenflow_default_rate="reading"
    ) as engine:
        # The engine has an event loop of its own.
        answers = engine.loop.run_until_complete(read_all(engine, given.max_tokens))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        print(f"{prompt}{answer}\n")


# SGLang starts its processes with "spawn": they import this file again.
if __name__ == "__main__":
    main()
