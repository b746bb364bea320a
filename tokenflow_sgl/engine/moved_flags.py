"""Flags of before: each is refused with a sentence that names the place that it has moved to."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, NoReturn

from tokenflow_sgl.engine.config import PREFIX, TUNING_SETTING, tuning_tables
from tokenflow_sgl.policy import ConfigError

CHECK_RANKS_VARIABLE = "TOKENFLOW_CHECK_RANKS"
"""For debugging: 1 lets every rank compare what it does with the leader (see `Agreement`)."""


@dataclass(frozen=True, slots=True)
class MovedSetting:
    """A setting that was a flag once.

    Attributes:
        name: Of the setting.
        default: As shipped; a bool was switched on and off.
        table: Of a tuning file, in which it stands today; empty: it stands in none.
        instead: Follows the flag's name in the sentence, where it stands in none.
    """

    name: str
    default: Any = False
    table: str = ""
    instead: str = ""

    def sentence(self, called: str, file: str, value: Any) -> str:
        """Why it is refused, with the line to write instead of it.

        Args:
            called: What was given: a flag or a keyword.
            file: What a tuning file is named with there.
            value: As text or in its type; None: none was given.
        """
        if not self.table:
            return f"{called} {self.instead}"
        line = f"{self.name} = {self._written(value)}"
        return f"{called} has moved: write {line} below [{self.table}] in a file for {file}"

    def _written(self, value: Any) -> str:
        text = str(self.default if value is None else value)
        if isinstance(self.default, str):
            return f'"{text}"'
        return text.lower() if isinstance(self.default, bool) else text


MOVED: dict[str, MovedSetting] = {
    **{
        name: MovedSetting(name, item.default, table)
        for table, known in tuning_tables().items()
        for name, item in known.items()
        if not item.metadata["flag"]
    },
    "check_ranks": MovedSetting(
        "check_ranks",
        instead=f"has moved: {CHECK_RANKS_VARIABLE}=1 in the server's environment does that",
    ),
    "host_room": MovedSetting(
        "host_room",
        instead="has been removed, because it bought no time in its benchmark; leave it out",
    ),
}
"""All settings that had a flag and have none, by name."""


class MovedFlag(argparse._StoreAction):
    """Ends the start where a flag of before is given.

    It is a store action, since SGLang's reader of YAML files takes no others that may have a value.
    """

    def __init__(self, *args: Any, moved: MovedSetting, **more: Any) -> None:
        super().__init__(*args, **more)
        self._moved = moved

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        """Raise `SystemExit` with the sentence."""
        called = flag_of(self._moved.name)
        if option_string is not None and option_string.startswith("--no-"):
            called, values = called.replace("--", "--no-", 1), "false"
        elif isinstance(self._moved.default, bool) and values is None:
            values = "true"
        sentence = self._moved.sentence(called, flag_of(TUNING_SETTING), values)
        raise SystemExit(f"tokenflow: {sentence}")


def declare_moved(group: argparse._ArgumentGroup) -> None:
    """Declare the flags of before, which `--help` does not show."""
    for name, moved in MOVED.items():
        names = [flag_of(name)]
        if isinstance(moved.default, bool):
            names.append(flag_of(name).replace("--", "--no-", 1))
        group.add_argument(
            *names,
            action=MovedFlag,
            moved=moved,
            nargs="?",
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


def check_keywords(given: dict[str, Any]) -> None:
    """Raise `ConfigError` for the first setting by name that has moved."""
    for name, value in given.items():
        if name in MOVED:
            file = PREFIX + TUNING_SETTING
            raise ConfigError(MOVED[name].sentence(PREFIX + name, file, value))


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return f"--{PREFIX}{name}".replace("_", "-")
