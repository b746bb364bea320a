"""Planners of layers that tests switch on by name, and what they note of what they were asked."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

from tokenflow_sgl.engine.layerwise.even_spread import EvenSpread
from tokenflow_sgl.engine.layerwise.layer_plans import StreamsInStep
from tokenflow_sgl.engine.layerwise.prompt_admission import JoiningPrompt
from tokenflow_sgl.engine.layerwise.solved_layers import SolvedLayers
from tokenflow_sgl.placement import Layout, half_phases

NOTES = "TOKENFLOW_TEST_LAYERS"
"""Variable with the file in which each step's streams are noted."""


def note(streams: StreamsInStep, **more: object) -> None:
    """A JSON line: pages of those in the step, those that rest, layers on the host before."""
    line = {
        "running": streams.pages[streams.running].tolist(),
        "resting": streams.pages[~streams.running].tolist(),
        "layouts": streams.layouts,
        "cells": streams.cells,
        **more,
    }
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(json.dumps(line) + "\n")


class AnyLayers:
    """Any layers of any stream, others in each step; the same on all ranks."""

    def __init__(self) -> None:
        self._chance = random.Random(7)

    def layouts(self, streams: StreamsInStep) -> Sequence[Layout]:
        note(streams)
        layers = range(1, streams.layers + 1)
        shares = [self._chance.choice((0.0, 0.3, 0.7, 1.0)) for _ in streams.rows]
        return [tuple(n for n in layers if self._chance.random() < share) for share in shares]


class AnyChoice:
    """One of the choices of `placement.layouts` for each stream, another in each step."""

    def __init__(self) -> None:
        self._chance = random.Random(8)

    def layouts(self, streams: StreamsInStep) -> Sequence[Layout]:
        note(streams)
        choices = half_phases(streams.layers).choices
        return [self._chance.choice(choices) for _ in streams.rows]


class NotedSolver(SolvedLayers):
    """The solver, not compiled, with notes of the seconds that it expects."""

    def layouts(self, streams: StreamsInStep) -> Sequence[Layout]:
        found = super().layouts(streams)
        note(streams, planned=found, seconds=self.seconds)
        return found


class AllJoin(NotedSolver):
    """The same, and no prompt waits for the streams that run."""

    def carries(self, newcomer: JoiningPrompt) -> bool:
        return True


class Noted(EvenSpread):
    """The shipped one, with notes."""

    def layouts(self, streams: StreamsInStep) -> Sequence[Layout]:
        note(streams)
        return super().layouts(streams)
