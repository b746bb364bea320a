"""What the trained model is asked: 64 prompts in English, code and JSON, all of them ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

FIRST_SEED = 1000
"""As `server_side/whole_vocabulary.py` has it."""
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95}

_ENGLISH = (
    "Why is the sky blue?",
    "What is the capital of France, and what is it known for?",
    "Tell me a short story about a fox and a lighthouse.",
    "How do bees find their way home?",
    "Write a letter to a friend who has moved to another town.",
    "Explain to a child why the moon changes its shape.",
    "What should I pack for three days in the mountains?",
    "Give me three reasons to learn to play the piano.",
    "How does bread rise?",
    "Describe a market on a summer morning.",
    "What is the difference between weather and climate?",
    "Why do leaves turn red in autumn?",
    "Write a poem of four lines about the sea.",
    "How can I sleep better at night?",
    "Who was Ada Lovelace?",
    "What happens when water freezes?",
    "Summarise the story of Robinson Crusoe in two sentences.",
    "How do I make tea for six people?",
    "What makes a good teacher?",
    "Explain how a bicycle stays upright.",
    "Which animals sleep through the winter?",
    "Write an invitation to a birthday party in a garden.",
    "Why does a ship of steel float?",
    "Describe the taste of a lemon.",
)
_CODE = (
    "Write a Python function that adds two numbers.",
    "Write a Python function that returns the longest word of a sentence.",
    "Complete this:\n\ndef is_prime(n: int) -> bool:\n    ",
    "What does this print?\n\nfor i in range(3):\n    print(i * i)",
    "Write a SQL query that counts the orders of each customer.",
    "Write a shell command that finds all files larger than one megabyte.",
    "Explain this line of Python: squares = {n: n * n for n in range(10)}",
    "Write a JavaScript function that reverses a string.",
    "Write a C function that swaps two integers.",
    "Find the mistake:\n\ndef mean(values):\n    return sum(values) / len(value)",
    "Write a regular expression that matches a date like 2024-05-31.",
    "Write a Python class for a stack with push and pop.",
    "Write a unit test for a function named slugify.",
    "Complete this:\n\nfn fibonacci(n: u64) -> u64 {\n",
    "Write an HTML table with two rows and two columns.",
    "Explain what git rebase does.",
    "Write a Python generator that reads a file line by line.",
    "Turn this loop into a list comprehension:\n\nout = []\nfor x in xs:\n    out.append(x + 1)",
    "Write a CSS rule that centres a box.",
    "Write a Makefile with the targets build and clean.",
)
_THINGS = (
    "a person with a name and an age",
    "a book with a title, an author and a year",
    "a city with its country and its population",
    "a recipe with a list of ingredients",
    "a train with its stations and their times",
    "a song with a title and its length in seconds",
    "a house with rooms, each with a name and an area",
    "a weather report with temperature and wind",
    "a shopping list with prices",
    "a calendar entry with a start and an end",
)
_RECORDS: tuple[dict[str, Any], ...] = (
    {"id": 7, "name": "lamp", "price": 19.5},
    {"user": "mira", "roles": ["admin", "editor"]},
    {"from": "Berlin", "to": "Prague", "hours": 4.5},
    {"temperature": [12, 14, 19, 17], "unit": "C"},
    {"title": "A Walk", "pages": 120, "tags": ["calm", "short"]},
    {"open": True, "tables": 12, "dishes": {"soup": 5, "bread": 2}},
    {"x": 1, "y": -2, "z": 0.5},
    {"error": {"code": 404, "message": "not found"}},
    {"queue": [3, 1, 2], "done": False},
    {"name": "Ö", "symbols": "{}[]"},
)


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt.

    Attributes:
        number: Its place among all.
        kind: "English", "code" or "JSON".
        text: What the user says.
    """

    number: int
    kind: str
    text: str

    @property
    def sampling(self) -> dict[str, Any]:
        """Every second one is sampled, and each has a seed of its own."""
        how = SAMPLED if self.number % 2 else {"temperature": 0.0}
        return {**how, "sampling_seed": FIRST_SEED + self.number}


def _texts() -> list[tuple[str, str]]:
    asked = [f"Give me a JSON object for {thing}." for thing in _THINGS]
    shown = [f"Add a field to this JSON: {json.dumps(each)}" for each in _RECORDS]
    json_ = [*asked, *shown]
    return [
        *(("English", text) for text in _ENGLISH),
        *(("code", text) for text in _CODE),
        *(("JSON", text) for text in json_),
    ]


QUESTIONS = tuple(Question(number, kind, text) for number, (kind, text) in enumerate(_texts()))
FEW = QUESTIONS[::7]
"""Of each kind some."""
