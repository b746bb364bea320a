"""Answers that end by EOS where their client says, unknown to the scheduler.

Real answers end by themselves, at a length that no server knows. The models of this package never
end, so a client says under `END_KEY` of a request's `custom_params` how long the answer is to be:

    {"emulated_output_tokens": 57}

Its 57th token is then EOS, whatever the model or the sampler chose (log-probabilities are those of
what they chose). SGLang knows of it no more than of any other answer's end: the scheduler sees
`max_new_tokens`, which ends the answer before if it is smaller. Tokens are counted from the prompt,
so a request that was preempted, retracted or prefilled in chunks ends at the same one. Not emulated
for speculative decoding. Without this platform nothing reads the key.
"""

from collections.abc import Callable, Mapping
from typing import Any

END_KEY = "emulated_output_tokens"


def check_end(_manager: Any, obj: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before SGLang's check of a request, which answers a ValueError with HTTP 400.

    Raises:
        ValueError: The wanted length is none, or EOS would be ignored.
    """
    sampling = getattr(obj, "sampling_params", None)
    custom = sampling.get("custom_params") if isinstance(sampling, Mapping) else None
    if not isinstance(sampling, Mapping) or not isinstance(custom, Mapping):
        return
    if END_KEY not in custom:
        return
    if _wanted(custom) is None:
        raise ValueError(
            f"{END_KEY} is {custom[END_KEY]!r}; allowed is a whole number of at least 1."
        )
    if sampling.get("ignore_eos"):
        raise ValueError(f"{END_KEY} ends an answer by EOS, and ignore_eos ignores that; give one.")


def end_answers(
    original: Callable[..., Any], worker: Any, batch: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Around a forward pass with its sampling: the last tokens that are wanted become EOS."""
    ends = {} if batch is None else _ends(batch)
    result = original(worker, batch, *args, **kwargs)
    if not ends:
        return result
    if result.next_token_ids is not None:
        _put(ends, result)
    elif result.delay_sample_func is not None:  # with a grammar the token is sampled later
        sample = result.delay_sample_func
        result.delay_sample_func = lambda: _put(ends, sample())
    return result


def _ends(batch: Any) -> dict[int, int]:
    """EOS by the row of the batch, for those requests whose next token is to be their last."""
    # Those that the CPU has: a GPU would be waited for. With drafts only the device knows them.
    lengths = batch.seq_lens if batch.seq_lens_cpu is None else batch.seq_lens_cpu
    ends = {}
    for row, (req, length) in enumerate(zip(batch.reqs, lengths.tolist(), strict=True)):
        custom = req.sampling_params.custom_params
        if isinstance(custom, dict) and END_KEY in custom:
            # `length` tokens are in the KV cache after this pass, and the next one is sampled.
            number = length - len(req.origin_input_ids) + 1
            if number == _wanted(custom):
                ends[row] = min(req.eos_token_ids)
    return ends


def _put(ends: Mapping[int, int], result: Any) -> Any:
    for row, token in ends.items():
        result.next_token_ids[row] = token
    return result


def _wanted(custom: Mapping[str, Any]) -> int | None:
    """The wanted length in tokens, EOS included; None if it is none."""
    value = custom[END_KEY]
    # bool is an int to Python, but no client means a length by it.
    return value if type(value) is int and value >= 1 else None
