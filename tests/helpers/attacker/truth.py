"""What undisturbed SGLang answers: every answer under attack is held against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from servers.client import Served

LONGEST = 160
"""Tokens of a reference answer, and so the most that an attacker asks for."""
CHATS = ("Tell me a story.", "Tell me a story of the sea.", "Tell me a joke.", "And then?")


@dataclass(frozen=True)
class Subject:
    """A prompt, and the answer to it at temperature 0.

    Attributes:
        name: What a journal calls it.
        prompt: Token ids, or what a user says in a chat.
        ids: Tokens of the answer; none for a chat, whose route does not tell them.
        words: The text of each token: the tiny model's answers are a word per token.
        logprobs: Log probability of each token of `ids`.
    """

    name: str
    prompt: tuple[int, ...] | str
    words: tuple[str, ...]
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()

    def text(self, tokens: int) -> str:
        """The text of the first `tokens` tokens."""
        return "".join(self.words[:tokens])


def subjects(stock: Served, prompts: list[list[int]]) -> list[Subject]:
    """Ask stock SGLang all prompts and chats, one after the other."""
    return [
        *(_generated(stock, f"prompt {n}", prompt) for n, prompt in enumerate(prompts)),
        *(_chatted(stock, f"chat {n}", said) for n, said in enumerate(CHATS)),
    ]


def _generated(stock: Served, name: str, prompt: list[int]) -> Subject:
    body: Any = stock.generate(prompt, max_new_tokens=LONGEST, return_logprob=True).body
    return Subject(
        name,
        tuple(prompt),
        _words(body["text"]),
        tuple(body["output_ids"]),
        tuple(value for value, *_ in body["meta_info"]["output_token_logprobs"]),
    )


def _chatted(stock: Served, name: str, said: str) -> Subject:
    messages = [{"role": "user", "content": said}]
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": LONGEST}
    answer: Any = stock.post("/v1/chat/completions", body).body
    return Subject(name, said, _words(answer["choices"][0]["message"]["content"]))


def _words(text: str) -> tuple[str, ...]:
    words = tuple(f" {word}" for word in text.split(" ")[1:])
    assert len(words) == LONGEST, "each token of the tiny model is one word"
    return words
