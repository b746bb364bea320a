"""What a tuning file may be, and what is said about one that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from tokenflow_sgl.policy.config import ConfigError, setting
from tokenflow_sgl.policy.tuning_file import MOST_BYTES, read_tuning, write_tuning


@dataclass(frozen=True)
class Policy:
    share: float = setting(0.5, "of it", low=0.0, high=2.0)
    chunk: int = setting(64, "tokens", low=16, high=1024)
    park: bool = setting(True, "whether")
    rule: str = setting("demand", "which", words=("demand", "slo"))


@dataclass(frozen=True)
class Engine:
    lengths: str = setting("learned", "what tells")


TABLES = {
    name: {item.name: item for item in fields(record)}
    for name, record in (("policy", Policy), ("engine", Engine))
}
ELSEWHERE = {"classes": "it is the flag --tokenflow-classes"}


@pytest.fixture
def read(tmp_path):
    """Reads a file with this text or these bytes."""

    def of(text: str | bytes):
        path = tmp_path / "own.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_tuning(str(path), TABLES, ELSEWHERE)

    return of


def test_what_is_written_is_read_bit_by_bit(read) -> None:
    values = {
        "policy": {"share": 0.1 + 0.2, "chunk": 512, "park": False, "rule": "slo"},
        "engine": {"lengths": "package.module:Class"},
    }
    assert read(write_tuning(values)) == values


def test_what_is_not_said_is_not_there(read) -> None:
    assert read("") == read("[policy]\n[engine]") == {"policy": {}, "engine": {}}


def test_a_whole_number_is_a_number(read) -> None:
    found = read("[policy]\nshare = 1")["policy"]["share"]
    assert found == 1.0 and type(found) is float


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[policy]\nshare = 3", "[policy] share is 3; allowed is 0 to 2"),
        ("[policy]\nshare = nan", "[policy] share is nan; allowed is 0 to 2"),
        ("[policy]\nshare = inf", "[policy] share is inf; allowed is 0 to 2"),
        ("[policy]\nshare = true", "[policy] share is True; allowed is a number"),
        ('[policy]\nshare = "1"', "[policy] share is '1'; allowed is a number"),
        ("[policy]\nshare = [1]", "[policy] share is [1]; allowed is a number"),
        ("[policy]\nshare.a = 1", "[policy] share is {'a': 1}; allowed is a number"),
        (f"[policy]\nshare = 1{'0' * 400}", "share is a huge integer; allowed is 0 to 2"),
        ("[policy]\nchunk = 64.0", "[policy] chunk is 64.0; allowed is a whole number"),
        ("[policy]\nchunk = true", "[policy] chunk is True; allowed is a whole number"),
        ("[policy]\nchunk = 8", "[policy] chunk is 8; allowed is 16 to 1024"),
        ("[policy]\npark = 1", "[policy] park is 1; allowed is true or false"),
        ('[policy]\nrule = "all"', "[policy] rule is 'all'; allowed is demand or slo"),
        ("[engine]\nlengths = 4", "[engine] lengths is 4; allowed is a text"),
        ("[policy]\nshar = 1", "[policy] has no 'shar'; allowed are share, chunk, park, rule"),
        ("[polic]\nshare = 1", "'polic', which is no table of it; allowed are [policy] and [eng"),
        ("policy = 3", "policy is 3; allowed is a table, [policy]"),
        ("[[policy]]\nshare = 1", "policy is [{'share': 1}]; allowed is a table, [policy]"),
        ("share = 1", "share stands in the wrong place; allowed is in [policy]"),
        ("[engine]\nshare = 1", "share stands in the wrong place; allowed is in [policy]"),
        ("[engine]\nclasses = 1", "classes does not belong here: it is the flag --tokenflow-cla"),
        ("classes = 1", "classes does not belong here: it is the flag --tokenflow-classes"),
        ("[policy]\nshare = ", "it is no TOML: "),
        ("[policy]\nshare = 1\nshare = 1", "it is no TOML: "),
        (f"[policy]\nshare = {'[' * 5000}", "it is no TOML: "),
        ("- eta: 3", "it is no TOML: "),
        (b"[policy]\nrule = '\xff'", "it is no text in UTF-8"),
        (b"#" * (MOST_BYTES + 1), "it is longer than 65,536 bytes"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(read, tmp_path, text, said) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    message = str(caught.value)
    assert message.startswith(f"tuning file {tmp_path / 'own.toml'}: ")
    assert said in message
    assert "\n" not in message and len(message) < 300


def test_the_largest_file_is_read(read) -> None:
    text = "[policy]\nshare = 1\n"
    assert read(text + "#" * (MOST_BYTES - len(text)))["policy"] == {"share": 1.0}


@pytest.mark.parametrize("path", ["none.toml", ".", "none\0.toml"])
def test_what_cannot_be_opened_is_refused_by_name(path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^tuning file ") as caught:
        read_tuning(path, TABLES, ELSEWHERE)
    assert path in str(caught.value)
