"""The flags are the configuration record, no more and no less."""

from __future__ import annotations

import argparse
import dataclasses
import pickle
from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine.config import TokenFlowConfig, build, config_of, settings
from tokenflow_sgl.engine.flags import add_arguments, attach, config_from
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.policy import ConfigError, WorkingSetConfig
from tokenflow_sgl.qos.classes import SHIPPED, QosClass

NAMES = [name for name, _, _ in settings()]
ON = ("--scheduler", "tokenflow")


def flag(name: str) -> str:
    return "--tokenflow-" + name.replace("_", "-")


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="sglang")
    made.add_argument("--model-path")
    add_arguments(made)
    return made


@pytest.fixture(autouse=True)
def classes_file(tmp_path, monkeypatch):
    """The file that `OTHER` names."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "classes.toml"
    path.write_text('default = "subtitles"\n[classes.subtitles]\nrate = 15\nweight = 2\n')
    return path


@pytest.fixture
def parse(parser):
    def config(*words: str) -> TokenFlowConfig | None:
        return config_from(parser.parse_args(words))

    return config


# A value other than the default for each setting.
OTHER = {
    "policy": "paper",
    "hicache": "off",
    "mixed_chunk": "off",
    "deposit": True,
    "longest_rest": 60.0,
    "thinking": "shown",
    "thinking_rate": 30.0,
    "default_rate": "listening",
    "classes": "classes.toml",
    "lengths": "limit",
    "overtake": 3.0,
    "priority_weight": 3.0,
    "length_caution": 0.6,
    "lengths_file": "lengths.json",
    "decision_log": "decisions.jsonl",
    "block_groups": True,
    "restore": "auto",
    "layerwise": "even",
    "layerwise_ratio": 3.0,
    "check_ranks": True,
    "admission": "both",
    "eta": 2.0,
    "burst_eta": 3.0,
    "calm": 1.0,
    "cycle": 1.0,
    "hysteresis": 1.0,
    "safety": 1.0,
    "switch_factor": 3.0,
    "min_run": 1.0,
    "band": 0.2,
    "band_seconds": 1.0,
    "urgent": 1.0,
    "prefill_chunk": 512,
    "prefill_guard": 2.0,
    "fill": 0.5,
    "pace": True,
    "write_ahead": False,
    "load_ahead": False,
    "load_chunks": True,
    "park": False,
    "park_floor": 0.5,
    "park_target": 0.5,
}


def value_of(config: TokenFlowConfig, name: str):
    own = {item.name for item in dataclasses.fields(TokenFlowConfig)}
    return getattr(config if name in own else config.working_set, name)


def words_for(name: str) -> list[str]:
    value = OTHER[name]
    if isinstance(value, bool):
        return [flag(name) if value else flag(name).replace("--", "--no-", 1)]
    return [flag(name), str(value)]


def test_every_field_of_both_records_is_a_setting_once() -> None:
    made_of_others = ("working_set", "known_classes")
    fields = [f.name for f in dataclasses.fields(TokenFlowConfig) if f.name not in made_of_others]
    fields += [f.name for f in dataclasses.fields(WorkingSetConfig)]
    assert fields == NAMES
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_flag_reaches_its_field_and_no_other(parse, name) -> None:
    config = parse(*ON, *words_for(name))
    plain = TokenFlowConfig()
    for other in NAMES:
        wanted = OTHER[name] if other == name else value_of(plain, other)
        assert value_of(config, other) == wanted
        assert type(value_of(config, other)) is type(value_of(plain, other))


def test_defaults_are_absent_so_that_only_given_values_count(parser) -> None:
    given = vars(parser.parse_args([]))
    assert given.pop("scheduler") == "default"
    assert given.pop("model_path") is None
    assert given == {f"tokenflow_{name}": None for name in NAMES}


def test_the_scheduler_alone_gives_the_defaults(parse) -> None:
    assert parse(*ON) == TokenFlowConfig()


def test_without_the_scheduler_there_is_no_configuration(parse) -> None:
    assert parse() is None
    assert parse("--tokenflow-eta", "2") is None
    assert parse("--scheduler", "default") is None
    assert config_from(argparse.Namespace()) is None


def test_an_unknown_scheduler_is_refused(parse, capsys) -> None:
    with pytest.raises(SystemExit):
        parse("--scheduler", "magic")
    assert "invalid choice: 'magic'" in capsys.readouterr().err


@pytest.mark.parametrize(("_name", "_default", "item"), settings(), ids=NAMES)
def test_every_setting_has_a_help_text(_name, _default, item) -> None:
    assert len(item.metadata["help"].split()) > 4


@pytest.mark.parametrize(("name", "default", "item"), settings(), ids=NAMES)
def test_help_shows_every_flag_with_its_text_and_default(parser, name, default, item) -> None:
    shown = "".join(parser.format_help().split())
    assert flag(name) in shown
    assert "".join(item.metadata["help"].split()) in shown
    assert f"(default:{default})" in shown


def test_a_file_of_classes_adds_to_the_shipped_ones(parse, classes_file) -> None:
    config = parse(*ON, *words_for("classes"))
    assert config.known_classes.known["subtitles"] == QosClass("subtitles", 15.0, weight=2.0)
    assert config.known_classes.known["agent"] == SHIPPED["agent"]
    assert config.known_classes.default.rate == 15.0


def test_the_default_on_the_command_line_is_not_the_files(parse, classes_file) -> None:
    config = parse(*ON, *words_for("classes"), flag("default_rate"), "listening")
    assert config.known_classes.default == QosClass("default", 5.0)
    assert parse(*ON, flag("default_rate"), "7.5").known_classes.default.rate == 7.5
    assert parse(*ON).known_classes.default.rate == 10.0


def test_a_bad_file_of_classes_stops_the_start(parse, tmp_path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[classes.voice]\nrate = 0")
    with pytest.raises(ConfigError) as caught:
        parse(*ON, flag("classes"), str(path))
    assert str(caught.value) == (
        f"classes: class file {path}: class voice: rate is 0; allowed is a number from 0.1 to 1000 "
        "tokens per second"
    )


def test_the_file_is_read_once_and_rides_on_the_record(parse, classes_file) -> None:
    config = parse(*ON, *words_for("classes"))
    classes_file.unlink()
    there = pickle.loads(pickle.dumps(config))
    assert there == config
    assert there.known_classes == config.known_classes


@pytest.mark.parametrize("rate", ["fast", "nan "])
def test_a_default_rate_that_is_none_is_refused(parse, rate) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*ON, f"{flag('default_rate')}={rate}")
    assert str(caught.value).startswith("default_rate is ")
    assert "allowed is a" in str(caught.value)


@pytest.mark.parametrize("rate", ["0", "-1", "1e9", "inf"])
def test_a_default_rate_out_of_range_is_refused(parse, rate) -> None:
    with pytest.raises(ConfigError, match=r"a number from 0\.1 to 1000 tokens per second"):
        parse(*ON, f"{flag('default_rate')}={rate}")


def test_a_default_rate_out_of_range_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^default_rate is "):
        build({"default_rate": "1e9"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("eta", "11", "eta is 11.0; allowed is 0.1 to 10"),
        ("eta", "nan", "eta is nan; allowed is 0.1 to 10"),
        ("prefill_chunk", "0", "prefill_chunk is 0; allowed is 16 to "),
        ("length_caution", "0", "length_caution is 0.0; allowed is 0.5 to 0.99"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(parse, name, value, message) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*ON, flag(name), value)
    assert str(caught.value).startswith(message)


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        build({"eta": 1.0, "etta": 2.0})
    message = str(caught.value)
    assert message.startswith("unknown setting tokenflow_etta; allowed are ")
    for name in NAMES:
        assert f"tokenflow_{name}" in message


def test_the_nested_record_is_no_setting() -> None:
    with pytest.raises(ConfigError, match="unknown setting tokenflow_working_set;"):
        build({"working_set": WorkingSetConfig()})


def test_hicache_is_one_of_its_choices() -> None:
    with pytest.raises(ConfigError, match=r"^hicache is 'on'; allowed is auto or off$"):
        build({"hicache": "on"})


# ---- on SGLang's record -------------------------------------------------------------


def test_the_configuration_rides_on_the_server_args() -> None:
    args = SimpleNamespace(enable_hierarchical_cache=False)
    assert config_of(args) is None
    config = TokenFlowConfig()
    attach(args, config)
    assert config_of(args) is config


@pytest.mark.parametrize(
    ("hicache", "before", "after"),
    [("auto", False, True), ("auto", True, True), ("off", False, False), ("off", True, True)],
)
def test_hicache_is_switched_on_but_never_off(hicache, before, after) -> None:
    args = SimpleNamespace(enable_hierarchical_cache=before)
    attach(args, build({"hicache": hicache}))
    assert args.enable_hierarchical_cache is after


def test_contiguous_copies_need_something_to_copy() -> None:
    asked = build({"hicache": "off", "block_groups": True})
    with pytest.raises(UnsupportedError, match=r"^--tokenflow-block-groups does not work with .*;"):
        attach(SimpleNamespace(enable_hierarchical_cache=False), asked)
    for args, config in (
        (SimpleNamespace(enable_hierarchical_cache=True), asked),
        (SimpleNamespace(enable_hierarchical_cache=False), build({"block_groups": True})),
    ):
        attach(args, config)
        assert config_of(args) is config


def test_excluded_options_leave_the_record_untouched() -> None:
    args = SimpleNamespace(enable_hierarchical_cache=False, pp_size=2)
    with pytest.raises(UnsupportedError, match="--pp-size 2"):
        attach(args, TokenFlowConfig())
    assert vars(args) == {"enable_hierarchical_cache": False, "pp_size": 2}


def test_a_decision_log_needs_a_folder(tmp_path) -> None:
    assert TokenFlowConfig(decision_log=str(tmp_path / "log")).decision_log.endswith("log")
    wanted = str(tmp_path / "none" / "log")
    with pytest.raises(ConfigError) as caught:
        TokenFlowConfig(decision_log=wanted)
    assert str(caught.value) == (
        f"decision_log is {wanted!r}; allowed is a file in a folder that exists"
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"policy": "nonsense"}, r"^policy is 'nonsense'; allowed is working-set, .* or package"),
        ({"policy": "no_such:Policy"}, r"^policy 'no_such:Policy' cannot be loaded: No module"),
        ({"policy": "json:Policy"}, r"^policy 'json:Policy' cannot be loaded: module 'json' has"),
        ({"lengths": "guess"}, r"^lengths is 'guess'; allowed is learned, limit or package"),
        ({"lengths": "json:JSONDecoder"}, r"cannot be loaded: it has no method kind"),
    ],
)
def test_what_cannot_be_loaded_is_refused_at_the_start(setting, message) -> None:
    config = build(setting)  # every process of the server does this, and loads nothing
    with pytest.raises(ConfigError, match=message):
        attach(SimpleNamespace(enable_hierarchical_cache=False), config)
