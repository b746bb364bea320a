"""Where an answer ends on the emulated platform: at the position of a token, not after steps."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tokenflow_sgl_emulator.answer_ends import END_KEY, check_end, end_answers

EOS = 1


def request(prompt: int, wanted: Any = None, limit: int = 4096) -> Any:
    custom = {"tokenflow_rate": 9.0} if wanted is None else {END_KEY: wanted}
    return SimpleNamespace(
        origin_input_ids=[0] * prompt,
        eos_token_ids={EOS, 7},
        sampling_params=SimpleNamespace(custom_params=custom, max_new_tokens=limit),
    )


def sampled(*rows: tuple[Any, int], delayed: bool = False) -> list[int]:
    """What a pass gives over (request, tokens in its KV cache afterwards): all 500 by itself."""

    def forward(worker: Any, batch: Any, flag: bool) -> Any:
        assert (worker, flag) == ("worker", True)
        tokens = torch.full((len(rows),), 500)
        result = SimpleNamespace(next_token_ids=tokens, delay_sample_func=None)
        if delayed:
            result.next_token_ids = None

            def sample() -> Any:
                result.next_token_ids = tokens
                return result

            result.delay_sample_func = sample
        return result

    requests, lengths = zip(*rows, strict=True)
    batch = SimpleNamespace(reqs=list(requests), seq_lens_cpu=torch.tensor(lengths))
    result = end_answers(forward, "worker", batch, flag=True)
    if delayed:
        assert result.delay_sample_func() is result
    tokens: list[int] = result.next_token_ids.tolist()
    return tokens


@pytest.mark.parametrize("wanted", [1, 2, 57])
def test_the_wanted_token_is_eos_and_no_other(wanted: int) -> None:
    asked = request(30, wanted)
    # After its prefill 30 tokens are in the cache, and its first token is sampled.
    got = [sampled((asked, 30 + done))[0] for done in range(60)]
    assert [number for number, token in enumerate(got, 1) if token == EOS] == [wanted]


def test_a_chunk_of_a_prompt_ends_nothing() -> None:
    asked = request(30, 4)
    assert [sampled((asked, length))[0] for length in range(1, 30)] == [500] * 29


def test_each_request_has_its_own_end() -> None:
    assert sampled((request(5, 3), 7), (request(5), 7), (request(5, 4), 7)) == [EOS, 500, 500]


def test_a_request_that_was_computed_anew_ends_at_the_same_token() -> None:
    # Retracted after 20 of 21 tokens: its prompt and its answer so far are prefilled again.
    asked = request(30, 21)
    assert sampled((asked, 49)) == [500]
    assert sampled((asked, 50)) == [EOS]


def test_a_token_that_is_sampled_later_ends_too() -> None:
    assert sampled((request(5, 3), 7), (request(5, 9), 7), delayed=True) == [EOS, 500]


def test_the_scheduler_sees_the_clients_limit() -> None:
    asked = request(5, 3)
    sampled((asked, 7))
    assert asked.sampling_params.max_new_tokens == 4096


def test_passes_without_a_batch_are_left_alone() -> None:
    result = SimpleNamespace(next_token_ids=None, delay_sample_func=None)
    assert end_answers(lambda *args, **kwargs: result, "worker", None, is_verify=True) is result


@pytest.mark.parametrize("value", [0, -3, 5.0, "5", True, None, [5]])
def test_a_length_that_is_none_is_refused(value: Any) -> None:
    obj = SimpleNamespace(sampling_params={"custom_params": {END_KEY: value}})
    with pytest.raises(ValueError, match=f"{END_KEY} is .*; allowed is a whole number of at least"):
        check_end(None, obj, [1])
    assert sampled((request(5, value or "none"), 7)) == [500]


def test_ignoring_eos_is_refused_with_it() -> None:
    sampling = {"custom_params": {END_KEY: 5}, "ignore_eos": True}
    with pytest.raises(ValueError, match="ignore_eos ignores that"):
        check_end(None, SimpleNamespace(sampling_params=sampling), [1])


@pytest.mark.parametrize(
    "sampling",
    [None, {}, {"custom_params": None}, {"custom_params": {END_KEY: 5}}, {"ignore_eos": True}],
)
def test_other_requests_pass(sampling: Any) -> None:
    check_end(None, SimpleNamespace(sampling_params=sampling), [1])
