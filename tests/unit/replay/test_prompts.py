import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.lab.replay.answers import ChatAnswer, GenerateAnswer
from tokenflow_sgl.lab.replay.prompts import ChatPrompts, Prompt, TokenPrompts
from tokenflow_sgl.lab.traces.request import PrefixBlock, TraceRequest


def items(prompt):
    return json.loads(b"[%b]" % prompt.json)


def request(tokens, *blocks):
    return TraceRequest(0.0, tokens, 5, prefix=tuple(PrefixBlock(*block) for block in blocks))


@given(st.integers(0, 2**40), st.integers(0, 10**6), st.integers(1, 500), st.integers(0, 10**6))
def test_token_prompts_have_the_exact_length_and_stay_in_range(seed, index, tokens, low):
    prompt = TokenPrompts(seed, low, low + 3).fresh(index, request(tokens))
    ids = items(prompt)
    assert len(ids) == prompt.tokens == tokens
    assert set(ids) <= {low, low + 1, low + 2}


def test_prompts_depend_on_seed_and_request_only():
    first, again = (TokenPrompts(1, 0, 1000) for _ in range(2))
    again.fresh(7, request(50))  # what was made before does not matter
    assert items(first.fresh(3, request(50))) == items(again.fresh(3, request(50)))
    assert items(first.fresh(3, request(50))) != items(first.fresh(4, request(50)))
    other = TokenPrompts(2, 0, 1000)
    assert items(first.fresh(3, request(50))) != items(other.fresh(3, request(50)))


def test_equal_blocks_are_equal_tokens_wherever_they_stand():
    prompts = TokenPrompts(0, 10, 1000)
    one = items(prompts.fresh(0, request(30, (5, 8), (-6, 12))))
    two = items(prompts.fresh(1, request(40, (5, 8), (7, 12))))
    three = items(prompts.fresh(2, request(20, (-6, 12), (5, 8))))
    assert one[:8] == two[:8] == three[12:]
    assert one[8:20] == three[:12] != two[8:20]
    assert one[20:] != two[20:30]
    assert len(three) == 20  # nothing of its own


def test_a_longer_stretch_of_a_block_starts_like_a_shorter_one():
    prompts = TokenPrompts(0, 10, 1000)
    short, long = (items(prompts.fresh(i, request(n, (5, n)))) for i, n in ((0, 6), (1, 60)))
    assert long[:6] == short


def test_a_following_prompt_starts_with_the_one_before_and_its_answer():
    prompts = TokenPrompts(0, 10, 1000)
    before = prompts.fresh(0, request(20))
    answer = GenerateAnswer(keep=True)
    answer.ids, answer.tokens = [1, 2, 3], 3
    after = items(prompts.following(1, request(40), before, answer))
    assert len(after) == 40
    assert after[:23] == [*items(before), 1, 2, 3]
    assert after[23:] != items(prompts.following(2, request(40), before, answer))[23:]


@pytest.mark.parametrize("tokens", [10, 23])
@pytest.mark.parametrize("counted", [3, 1])
def test_a_prompt_that_is_too_short_to_contain_the_last_turn_does_not(tokens, counted):
    """A server may send more ids than it counts."""
    prompts = TokenPrompts(0, 10, 1000)
    answer = GenerateAnswer(keep=True)
    answer.ids, answer.tokens = [1, 2, 3], counted
    assert prompts.following(1, request(tokens), prompts.fresh(0, request(20)), answer) is None


def test_unknown_answer_ids_are_made_up_for():
    prompts = TokenPrompts(0, 10, 1000)
    answer = GenerateAnswer()
    answer.tokens = 3
    before = prompts.fresh(0, request(20))
    after = items(prompts.following(1, request(40), before, answer))
    assert len(after) == 40
    assert after[:20] == items(before)


def test_the_bursts_prompts_are_like_no_other():
    prompts = TokenPrompts(0, 10, 1000)
    burst, fresh = items(prompts.burst(0, 30)), items(prompts.fresh(0, request(30)))
    assert len(burst) == 30
    assert burst != fresh
    assert burst != items(prompts.burst(1, 30))


def words(message):
    return message["content"].split(" ")


def test_chat_prompts_have_as_many_words_as_make_the_tokens():
    prompts = ChatPrompts(0, tokens_per_word=2.0, overhead=10.0)
    (message,) = items(prompts.fresh(0, request(110)))
    assert message["role"] == "user"
    assert len(words(message)) == 50
    (short,) = items(prompts.fresh(0, request(3)))
    assert len(words(short)) == 1  # never empty


def test_chat_blocks_are_equal_words():
    prompts = ChatPrompts(0)
    (one,), (two,) = (items(prompts.fresh(i, request(30, (5, 10)))) for i in range(2))
    assert words(one)[:10] == words(two)[:10]
    assert words(one)[10:] != words(two)[10:]
    assert len(words(one)) == len(words(two)) == 30


def test_a_chat_goes_on_with_the_answer_as_a_message():
    prompts = ChatPrompts(0, overhead=4.0)
    before = prompts.fresh(0, request(24))
    answer = ChatAnswer(keep=True)
    answer.text, answer.tokens, answer.prompt_tokens = 'so "it" is', 6, 25
    messages = items(prompts.following(1, request(50), before, answer))
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0] == items(before)[0]
    assert messages[1]["content"] == 'so "it" is'
    assert len(words(messages[2])) == 50 - 25 - 6
    assert prompts.following(1, request(31), before, answer) is None
    answer.text = "half an emoji: \ud83d"
    messages = items(prompts.following(1, request(50), before, answer))
    assert messages[1]["content"] == "half an emoji: ?"


def test_prompts_are_lists_of_json():
    assert items(Prompt(2, b"1,2")) == [1, 2]
