"""Which values are secrets, and how they are masked in texts."""

import logging
import sys
import threading
from pathlib import Path

import pytest

from thresher.cli import output
from thresher.cli.options import resolve_dsn
from thresher.core.errors import InvalidInput
from thresher.core.secrets import MASK, Masking, Secrets, is_secret, mask_logs, shown_property
from thresher.db.postgres.dsn import shown_dsn


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config", "sasl.oauthbearer.assertion.private.key.pem", "sasl.jaas.config",
        "sasl.oauthbearer.client.credentials.client.secret", "spark.authenticate.secret", "spark.ssl.keyPassword",
        "spark.hadoop.fs.s3a.access.key", "basic.auth.user.info", "sasl.oauthbearer.extensions", "store.passphrase",
        "spark.hadoop.google.credentials",
    ],
)  # fmt: skip
def test_a_secret_is_recognised_by_its_name(name: str) -> None:
    assert is_secret(name)
    assert shown_property(name, "hunter2") == MASK


@pytest.mark.parametrize(
    "name",
    [
        "sasl.username", "ssl.key.location", "bootstrap.servers", "sasl.oauthbearer.token.endpoint.url", "client.id",
        "ssl.certificate.pem", "sasl.oauthbearer.client.credentials.client.id", "compression.type",
        "sasl.oauthbearer.assertion.private.key.file",
    ],
)  # fmt: skip
def test_a_value_that_is_no_secret_is_shown(name: str) -> None:
    assert shown_property(name, "plain") == "plain"


def test_a_url_is_shown_without_its_password() -> None:
    assert shown_property("plugin.url", "https://me:hunter2@host/x") == "https://me:***@host/x"
    assert shown_dsn("postgresql://me:hunter2@db:5433/shop?sslmode=require") == (
        "user=me password=*** dbname=shop host=db port=5433 sslmode=require"
    )


def test_a_short_secret_is_masked_as_a_whole_word() -> None:
    assert Secrets(["a"]).mask("a password a was refused, (a)") == "*** password *** was refused, (***)"


def test_the_longest_secret_is_masked_first() -> None:
    assert Secrets(["secret", "secret-two"]).mask("secret-two secret") == "*** ***"


def test_each_line_of_a_key_is_a_secret() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n"
    assert Secrets([key]).mask("it read MIGHAgEAMBMGByqGSM49 there") == "it read *** there"


def test_nothing_is_masked_where_there_is_no_secret() -> None:
    assert Secrets([""]).mask("as it is") == "as it is"


def test_every_handler_is_masked() -> None:
    logger = logging.Logger("test")
    plain, own = logging.StreamHandler(), logging.StreamHandler()
    own.setFormatter(logging.Formatter("own: %(message)s"))
    logger.addHandler(plain)
    logger.addHandler(own)
    mask_logs(Secrets(["hunter2"]), logger)
    record = logger.makeRecord("test", logging.INFO, "", 0, "with %s", ("hunter2",), None)
    assert isinstance(plain.formatter, Masking)
    assert [handler.format(record) for handler in (plain, own)] == ["with ***", "own: with ***"]


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the process-wide settings that the command changes."""
    for place, name in ((sys, "excepthook"), (threading, "excepthook"), (output, "_mask")):
        monkeypatch.setattr(place, name, getattr(place, name))


@pytest.mark.usefixtures("hooks")
def test_every_command_hides_a_data_source_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data-source"
    monkeypatch.setenv("THRESHER_DS_FILE", str(path))
    with pytest.raises(InvalidInput, match=f"THRESHER_DS_FILE: the file {path} cannot be read"):
        resolve_dsn(None)
    path.write_text("host=db password=hunter2\n")
    assert resolve_dsn(None) == "host=db password=hunter2"
    assert resolve_dsn("host=other") == "host=other", "a flag goes before the environment"
    resolve_dsn(None)
    output.complain("hunter2 was refused")
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.usefixtures("hooks")
def test_an_uncaught_error_is_printed_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    output.hide(Secrets(["hunter2"]).mask)
    try:
        int("hunter2")
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
    output.complain("not hunter2")
    output.note("nor hunter2")
    told = capsys.readouterr().err
    assert told.count("ValueError: invalid literal for int() with base 10: '***'") == 2
    assert "error: not ***" in told
    assert "nor ***" in told
    assert "hunter2" not in told
