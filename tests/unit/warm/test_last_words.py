"""Why a server died stands with the failure of the test that it died in."""

from __future__ import annotations

import pytest
from servers.last_words import LINES, last_exception, telling_why

LOG = f"""[2026] Scheduler hit an exception: Traceback (most recent call last):
  File "early.py", line 1
ValueError: an earlier one

[2026] Scheduler hit an exception: Traceback (most recent call last):
{chr(10).join(f'  File "{name}.py", line 1' for name in range(20))}
RuntimeError: Out of memory.
Try to allocate 23 tokens.

[2026] SIGQUIT received.
"""


def test_it_is_the_last_exception_up_to_what_follows_it() -> None:
    found = last_exception(LOG).splitlines()
    assert len(found) == LINES
    assert found[-2:] == ["RuntimeError: Out of memory.", "Try to allocate 23 tokens."]
    assert last_exception("[2026] The server is fired up and ready to roll!") == ""


def test_a_failure_has_it_as_a_note(tmp_path) -> None:
    (tmp_path / "log").write_text(LOG)
    with pytest.raises(ConnectionError) as failed, telling_why(tmp_path / "log"):
        raise ConnectionError("ends too early")
    assert "RuntimeError: Out of memory." in failed.value.__notes__[0]
    assert "RuntimeError: Out of memory." in failed.exconly(), "the run's summary shows that"


def test_a_failure_without_one_is_as_it_was(tmp_path) -> None:
    (tmp_path / "log").write_text("[2026] nothing happened\n")
    with pytest.raises(AssertionError) as failed, telling_why(tmp_path / "log"):
        raise AssertionError
    assert not hasattr(failed.value, "__notes__")
