"""A second form, other than the relay's, works with file, environment, flags, report and docs."""

import enum
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from thresher.cli.form_command import add_form_command
from thresher.config.docs_table import BEGIN, END, table_of, with_table
from thresher.config.flags import flags_of
from thresher.config.form import Form, KafkaProperties, Properties, Rule, Texts, kept_secret
from thresher.config.loading import Completed, load
from thresher.config.problem import ConfigurationInvalid
from thresher.config.setting import DefaultText, HoldsSecrets, Names, Required, Shorthand, settings_of
from thresher.core.secrets import Secret


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


def _lit(address: str) -> str:
    if address.startswith("dark"):
        raise ValueError(f"nobody is at {address}")
    return address.partition("/")[0] + "/***"


class LampForm(Form):
    address: Annotated[
        Secret | None,
        *kept_secret(_lit),
        Names(flags=("--at", "--address"), variable="AT"),
        HoldsSecrets(lambda text: [text.partition("/")[2]]),
        Required("where is the lamp?"),
    ] = Field(default=None, description="Address of the lamp, as HOST/PASSWORD. It is asked once.")
    colour: Colour = Field(default=Colour.RED, description="The colour. `blue` is cold.")
    blinks: int = Field(default=1_000, ge=1, le=2_000, description="Blinks at most.")
    pause_seconds: Annotated[float | None, DefaultText("as long as a blink")] = Field(
        default=None, gt=0, description="Seconds between two blinks."
    )
    steady: bool = Field(default=False, description="Whether it never blinks.")
    rooms: Texts = Field(default=(), description="Rooms that are lit.")
    client: Annotated[
        KafkaProperties, Shorthand(name="servers", property_name="bootstrap.servers", description="Servers, a|b.")
    ] = Field(default={}, description="Properties of the client.")
    labels: Properties = Field(default={}, description="Labels of the lamp.")

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        return (Rule(frozenset({"blinks", "steady"}), _blinks_or_not),)


def _blinks_or_not(form: LampForm, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if form.steady and "blinks" in given:
        yield "blinks", "a steady lamp has none"


def lamp(path: Path | None = None, **environment: str) -> Completed[LampForm]:
    return load(LampForm, path, {}, environment, warn=lambda _: None)


def test_flags_override_environment_and_environment_overrides_file(tmp_path: Path) -> None:
    path = tmp_path / "lamp.yaml"
    path.write_text(
        "address: file/hunter2\ncolour: blue\nblinks: 2\nrooms: hall\n"
        "client: {client.id: file, client.rack: file, acks: 1}\nlabels: {a: 1}\n"
    )
    environment = {
        "THRESHER_AT": "environment/hunter2", "THRESHER_BLINKS": "3", "THRESHER_CLIENT_CLIENT_ID": "environment",
        "THRESHER_CLIENT": "client.rack=environment", "THRESHER_LABELS": "b=2", "THRESHER_ROOMS": "", "BLINKS": "9",
    }  # fmt: skip
    done = load(LampForm, path, {"blinks": 4, "colour": None, "client": {"client.rack": "flag"}}, environment)
    form = done.form
    assert form.address == Secret("environment/hunter2")
    assert (form.colour, form.blinks, form.rooms) == (Colour.BLUE, 4, ("hall",))
    assert form.client == {"client.id": "environment", "client.rack": "flag", "acks": 1}
    assert form.labels == {"a": 1, "b": "2"}
    assert done.given == {"address", "colour", "blinks", "rooms", "client", "labels"}


def test_secrets_come_from_files_and_are_masked(tmp_path: Path) -> None:
    (tmp_path / "address").write_text("lamp/hunter2\n")
    (tmp_path / "password").write_text("hunter3")
    (tmp_path / "id").write_text("hunter6")
    done = lamp(
        THRESHER_AT_FILE=f"{tmp_path}/address", THRESHER_CLIENT_SASL_PASSWORD_FILE=f"{tmp_path}/password",
        THRESHER_LABELS="a.secret=hunter4 url=http://me:hunter5@lamp/", THRESHER_CLIENT_CLIENT_ID_FILE=f"{tmp_path}/id",
    )  # fmt: skip
    assert done.form.address == Secret("lamp/hunter2")
    assert done.form.client == {"sasl.password": "hunter3", "client.id": "hunter6"}
    assert done.shown == {
        "address": {"file": f"{tmp_path}/address"}, "colour": "red", "blinks": 1000, "steady": False, "rooms": [],
        "client": {"client.id": {"file": f"{tmp_path}/id"}, "sasl.password": {"file": f"{tmp_path}/password"}},
        "labels": {"a.secret": "***", "url": "http://me:***@lamp/"},
    }  # fmt: skip
    assert lamp(THRESHER_ADDRESS="lamp/hunter2").shown["address"] == "lamp/***"
    assert "hunter" not in done.secrets.mask("lamp/hunter2 hunter3 hunter4 hunter5 hunter6") + repr(done)


def test_one_report_names_every_problem_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "lamp.yaml"
    path.write_text("colours: red\nblinks: 0\nsteady: true\nclient: [hunter2]\n")
    with pytest.raises(ConfigurationInvalid) as caught:
        lamp(
            path, THRESHER_LABELS="hunter2", THRESHER_PAUSE_SECONDS="-1", THRESHER_CLIENT_SASL_PASSWORD_FILE="/no/file"
        )
    text = str(caught.value)
    for part in (
        "colours: there is no such key, did you mean 'colour'?", "blinks: ", "pause_seconds: ",
        "THRESHER_LABELS: property=value is needed", "address: it is missing: where is the lamp?",
        "client.sasl.password: the file /no/file cannot be read",
    ):  # fmt: skip
        assert part in text
    assert "steady" not in text, "a rule is skipped when one of its keys could not be read"
    assert "hunter2" not in text
    assert caught.value.exit_code == 2
    with pytest.raises(ConfigurationInvalid, match=r"address: nobody is at dark/\*\*\*$"):
        lamp(THRESHER_AT="dark/hunter2")
    path.write_text("address: lamp/hunter2\nblinks: 5\nsteady: true\n")
    with pytest.raises(ConfigurationInvalid, match=r"the configuration cannot work: blinks: a steady lamp has none$"):
        lamp(path)


def test_a_forms_command_has_a_flag_for_every_key() -> None:
    given: dict[str, Any] = {}
    app = typer.Typer()
    app.command("other")(lambda: None)

    def light(*, flags: dict[str, Any]) -> None:
        given.update(flags)

    add_form_command(app, "light", light, lambda: LampForm)
    runner = CliRunner()
    arguments = ["--address", "a/b", "--blinks", "7", "--steady", "--rooms", "x", "--rooms", "y", "--servers", "k:1"]
    answer = runner.invoke(app, ["light", *arguments], env={"THRESHER_COLOUR": "green", "THRESHER_PAUSE_SECONDS": "2"})
    assert answer.exit_code == 0, answer.output
    assert given == {
        "address": "a/b", "colour": "green", "blinks": 7, "pause_seconds": 2.0, "steady": True, "rooms": ["x", "y"],
        "client": {"bootstrap.servers": "k:1"}, "labels": {},
    }  # fmt: skip
    assert runner.invoke(app, ["light", "--no-steady"], env={"THRESHER_STEADY": "true"}).exit_code == 0
    assert given["steady"] is False
    assert runner.invoke(app, ["light", "--blink", "7"]).exit_code == 2
    help_ = runner.invoke(app, ["light", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for part in ("--at, --address", "THRESHER_AT", "Blinks at most, 1 to 2000. (default: 1000)", "THRESHER_SERVERS"):
        assert part in help_


def test_the_help_of_flags_is_made_from_the_declaration() -> None:
    assert {flag.name: flag.help for flag in flags_of(LampForm)} == {
        "address": "Address of the lamp, as HOST/PASSWORD; THRESHER_AT_FILE names a file that holds it.",
        "colour": "The colour: red, blue or green. (default: red)",
        "blinks": "Blinks at most, 1 to 2000. (default: 1000)",
        "pause_seconds": "Seconds between two blinks. (default: as long as a blink)",
        "steady": "Whether it never blinks. (default: off)",
        "rooms": "Rooms that are lit; may be repeated.",
        "servers": "Servers, a|b.",
        "client": "Properties of the client, as property=value; may be repeated.",
        "labels": "Labels of the lamp, as property=value; may be repeated.",
    }


def test_the_table_of_keys_is_made_from_the_declaration() -> None:
    table = table_of(LampForm).splitlines()
    assert table[0] == "| key | meaning | values | default |"
    assert table[2].startswith(
        "| `address`, `--at`, `--address`, `THRESHER_AT` | Address of the lamp, as HOST/PASSWORD. "
    )
    assert table[2].endswith("It is asked once. |  | required |")
    assert table[3:6] == [
        "| `colour` | The colour. `blue` is cold. | `red`, `blue`, `green` | `red` |",
        "| `blinks` | Blinks at most. | 1 to 2,000 | 1,000 |",
        "| `pause_seconds` | Seconds between two blinks. | more than 0 | as long as a blink |",
    ]
    page = f"before\n{BEGIN}\nold\n{END}\nafter"
    assert with_table(page, LampForm) == f"before\n{BEGIN}\n{table_of(LampForm)}\n{END}\nafter"
    with pytest.raises(ValueError, match="no place for the table"):
        with_table("before", LampForm)


def test_a_setting_without_default_or_description_is_refused() -> None:
    class NoDefault(BaseModel):
        key: str = Field(description="A key.")

    class NoDescription(BaseModel):
        key: str = "value"

    for form in (NoDefault, NoDescription):
        with pytest.raises(TypeError, match="key: a setting needs a"):
            settings_of(form)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"blinks": "many"}, "blinks: a whole number is needed, not a text"),
        ({"blinks": "5s"}, "blinks: a whole number is needed, not '5s'"),
        ({"blinks": 1.5}, "blinks: a whole number is needed, not 1.5"),
        ({"blinks": 2_001}, "blinks: 1 to 2000 is needed, not 2001"),
        ({"pause_seconds": 0}, "pause_seconds: more than 0 is needed, not 0"),
        ({"pause_seconds": {"a": 1}}, "pause_seconds: a number is needed, not keys with values"),
        ({"steady": 5}, "steady: true or false is needed, not 5"),
        ({"colour": "mauve"}, "colour: red, blue or green is needed"),
        ({"colour": "Grean"}, "colour: red, blue or green is needed, did you mean 'green'?"),
        ({"rooms": ["hall", 5]}, "rooms.1: a text is needed, not 5"),
        ({"rooms": 5}, "rooms: a text or a list of them is needed, not 5"),
        ({"client": ["k:1"]}, "client: properties with their values are needed"),
        ({"client": {"servers": ["k:1"]}}, "client: servers: one text is needed, with commas instead of a list"),
    ],
)
def test_a_problem_says_what_is_needed_and_what_was_given(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        load(LampForm, None, {"address": "lamp/x", **given}, {})
    assert str(caught.value) == f"the configuration cannot work: {why}"


@pytest.mark.parametrize("key", ["blinks", "pause_seconds"])
def test_a_switch_is_no_number(key: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=rf"{key}: a (whole )?number is needed, not True$"):
        load(LampForm, None, {"address": "lamp/x", key: True}, {})


def test_a_secret_of_a_wrong_type_is_not_repeated() -> None:
    with pytest.raises(ConfigurationInvalid, match=r"address: a text is needed, or \{file: PATH\}$"):
        load(LampForm, None, {"address": ["lamp/hunter2"]}, {})


def test_a_malformed_section_is_refused_despite_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "lamp.yaml"
    path.write_text("address: lamp/x\nclient: nonsense\n")
    with pytest.raises(ConfigurationInvalid, match=r"client: properties with their values are needed$"):
        lamp(path, THRESHER_SERVERS="k:1")
