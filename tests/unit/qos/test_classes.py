"""Classes, and the file that declares them: every bad field is named with what is allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.qos.classes import (
    DEFAULT_CLASS,
    SHIPPED,
    SHIPPED_CLASSES,
    ClassError,
    QosClass,
    load_classes,
)

VOICE = "[classes.voice]\nrate = 5\n"


@pytest.fixture
def load(tmp_path):
    def written(text: str):
        path = tmp_path / "classes.toml"
        path.write_text(text)
        return load_classes(path)

    return written


def test_the_shipped_classes_say_nothing_but_rates_where_somebody_reads() -> None:
    for each in SHIPPED.values():
        assert each.weight == 1.0
        assert each.tolerance == 0.0 or not each.reader
    assert [each.name for each in SHIPPED.values() if not each.reader] == ["agent"]
    assert SHIPPED_CLASSES.default == QosClass("default", SHIPPED[DEFAULT_CLASS].rate)


def test_a_file_adds_classes_and_replaces_them(load) -> None:
    found = load(
        'default = "voice"\n'
        "[classes.voice]\nrate = 5\ntolerance = 0\nweight = 2\nttft_slo = 3\ntbt_slo = 0.5\n"
        "[classes.reading]\nrate = 12.5\ntolerance = 0.5\n"
        "[classes.tools]\nrate = 80\nreader = false\n"
    )
    assert found.known == {
        "voice": QosClass("voice", 5.0, weight=2.0, ttft_slo=3.0, tbt_slo=0.5),
        "reading": QosClass("reading", 12.5, tolerance=0.5),
        "tools": QosClass("tools", 80.0, reader=False),
        "listening": SHIPPED["listening"],
        "agent": SHIPPED["agent"],
    }
    assert found.default == replace(found.known["voice"], name="default")
    assert type(found.known["voice"].rate) is float


def test_without_a_default_the_readers_read(load) -> None:
    assert load(VOICE).default == SHIPPED_CLASSES.default
    assert load("[classes.reading]\nrate = 20").default == QosClass("default", 20.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "classes is None; allowed is a table for each class, [classes.NAME]"),
        ("classes = 5", "classes is 5; allowed is a table for each class, [classes.NAME]"),
        ("[classes]", "classes is {}; allowed is a table for each class, [classes.NAME]"),
        (
            "[class.voice]\nrate = 5",
            "the field 'class' is unknown; allowed are classes, default, tenants",
        ),
        (VOICE + "speed = 3", "class voice: the field 'speed' is unknown; allowed are rate, "
            "tolerance, weight, reader, ttft_slo, tbt_slo, tpot_slo, deadline, deposit, max_wait"),
        (VOICE + 'name = "x"', "class voice: the field 'name' is unknown; allowed are rate, "
            "tolerance, weight, reader, ttft_slo, tbt_slo, tpot_slo, deadline, deposit, max_wait"),
        ("classes.voice = 5", "class voice: it is 5; allowed is a table, [classes.voice]"),
        ("[classes.voice]\nweight = 2", "class voice: rate is missing; every class states its "
            "tokens per second"),
        ('[classes.voice]\nrate = "5"', "class voice: rate is '5'; allowed is a number from 0.1 to "
            "1000 tokens per second"),
        ("[classes.voice]\nrate = true", "class voice: rate is True; allowed is a number from 0.1 "
            "to 1000 tokens per second"),
        ("[classes.voice]\nrate = nan", "class voice: rate is nan; allowed is a number from 0.1 to "
            "1000 tokens per second"),
        ("[classes.voice]\nrate = 0", "class voice: rate is 0; allowed is a number from 0.1 to "
            "1000 tokens per second"),
        (VOICE + "tolerance = -1", "class voice: tolerance is -1; allowed is a number from 0 to "
            "600 seconds"),
        (VOICE + "tolerance = inf", "class voice: tolerance is inf; allowed is a number from 0 to "
            "600 seconds"),
        (VOICE + "weight = 0", "class voice: weight is 0; allowed is a number from 0.1 to 10"),
        (VOICE + "weight = 11", "class voice: weight is 11; allowed is a number from 0.1 to 10"),
        (VOICE + "ttft_slo = 0", "class voice: ttft_slo is 0; allowed is a number from 0.001 to "
            "600 seconds"),
        (VOICE + "tpot_slo = inf", "class voice: tpot_slo is inf; allowed is a number from 0.001 "
            "to 600 seconds"),
        (VOICE + "reader = 1", "class voice: reader is 1; allowed is true or false"),
        ('default = "chat"\n' + VOICE, "default is 'chat'; allowed is a class: agent, listening, "
            "reading, voice"),
        ("default = 20\n" + VOICE, "default is 20; allowed is the name of a class"),
        ("[classes.custom]\nrate = 5", "the class name 'custom' cannot be used; allowed are "
            "letters, digits and underscores, not beginning with a digit, and not default or "
            "custom"),
        ("[classes.default]\nrate = 5", "the class name 'default' cannot be used; allowed are "
            "letters, digits and underscores, not beginning with a digit, and not default or "
            "custom"),
        ("[classes.not-streamed]\nrate = 5", "the class name 'not-streamed' cannot be used; "
            "allowed are letters, digits and underscores, not beginning with a digit, and not "
            "default or custom"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_file(load, tmp_path, text, problem) -> None:
    with pytest.raises(ClassError) as caught:
        load(text)
    assert str(caught.value) == f"class file {tmp_path / 'classes.toml'}: {problem}"


def test_what_is_no_such_file_is_refused(tmp_path, load) -> None:
    with pytest.raises(ClassError, match=r"cannot be read: No such file or directory$"):
        load_classes(tmp_path / "none.toml")
    with pytest.raises(ClassError, match=r"cannot be read: Is a directory$"):
        load_classes(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"\xff")
    with pytest.raises(ClassError, match=r"cannot be read: it is not UTF-8 text$"):
        load_classes(tmp_path / "latin.toml")
    with pytest.raises(ClassError, match=r" is not TOML: "):
        load("[classes.voice\n")
    with pytest.raises(ClassError, match=r" is not TOML: "):
        load(VOICE + VOICE)
    with pytest.raises(ClassError, match=r" is not TOML: "):
        load("[classes.voice]\nrate = " + "9" * 5000)
    with pytest.raises(ClassError, match=r"classes.toml is nested too deeply to be read$"):
        load("[classes.voice]\nrate = " + "[" * 5000)


@pytest.mark.parametrize("text", ["rate = {}", "rate = 5\nreader = {}", "rate = 5\nspeed = {}"])
def test_a_value_that_python_refuses_to_print_is_named_all_the_same(load, text) -> None:
    """Hexadecimal digits are read without the limit that holds for printing."""
    with pytest.raises(ClassError, match=r"class voice: .*; allowed|the field 'speed' is unknown"):
        load("[classes.voice]\n" + text.format("0x" + "f" * 20_000))
    with pytest.raises(ClassError, match="default is a huge integer"):
        load(f"default = 0x{'f' * 20_000}\n{VOICE}")


@given(text=st.text(max_size=60))
def test_any_text_is_classes_or_one_sentence(tmp_path_factory, text) -> None:
    path = tmp_path_factory.mktemp("any") / "classes.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        load_classes(path)
    except ClassError as error:
        assert str(path) in str(error)
