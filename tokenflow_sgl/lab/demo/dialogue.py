"""What twelve readers ask a small trained model, and how fast each of them reads."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TOKENS = 80
"""Of an answer: what clients allow. Most answers end there, some before."""
KV_TOKENS = 400
"""Of each server: a third of what the dialogues need in the end."""
APART_S = 0.04
"""Seconds between two readers who ask."""
_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@dataclass(frozen=True, slots=True)
class ReaderOfWords:
    """One reader.

    Attributes:
        name: At most six letters.
        rate: Tokens per second that they read.
        question: What they ask.
    """

    name: str
    rate: float
    question: str

    @property
    def prompt(self) -> str:
        """As the model was trained on it (ChatML)."""
        said = (("system", _SYSTEM), ("user", self.question))
        turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said)
        return f"{turns}<|im_start|>assistant\n"


READERS = (
    ReaderOfWords("Ada", 12.0, "Why is the sky blue?"),
    ReaderOfWords("Ben", 8.0, "How does bread rise?"),
    ReaderOfWords("Chloe", 15.0, "What is the capital of France, and what is it known for?"),
    ReaderOfWords("Dev", 10.0, "Write a Python function that adds two numbers."),
    ReaderOfWords("Emma", 8.0, "Why do leaves turn red in autumn?"),
    ReaderOfWords("Femi", 12.0, "Give me three reasons to learn to play the piano."),
    ReaderOfWords("Greta", 10.0, "What happens when water freezes?"),
    ReaderOfWords("Hugo", 20.0, "Give me a JSON object for a book with a title and a year."),
    ReaderOfWords("Iris", 8.0, "How do bees find their way home?"),
    ReaderOfWords("Jonas", 15.0, "What should I pack for three days in the mountains?"),
    ReaderOfWords("Kaya", 10.0, "Why does a ship of steel float?"),
    ReaderOfWords("Liam", 12.0, "Tell me a short story about a fox and a lighthouse."),
)
