"""No secret of a configuration is ever shown: not in printed settings, errors or logs."""

import io
import json
import logging
import urllib.parse
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg import conninfo

from thresher.config.problem import ConfigurationInvalid
from thresher.core.secrets import MASK, Masking, Secrets
from thresher.harvest.configuration import load

# A part of every secret, and of nothing else.
MARK = "hunter2"
_CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"])
SECRETS = st.builds("{}{}{}".format, st.text(_CHARACTERS, max_size=5), st.just(MARK), st.text(_CHARACTERS, max_size=5))
HOLDERS = st.sampled_from(
    [
        "sasl.password", "ssl.key.password", "ssl.keystore.password", "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config", "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase", "sasl.oauthbearer.assertion.private.key.pem",
    ]
)  # fmt: skip


def as_pairs(secret: str) -> str:
    return conninfo.make_conninfo("", host="db", user="relay", password=secret, sslpassword=secret)


def as_url(secret: str) -> str:
    return f"postgresql://relay:{urllib.parse.quote(secret, safe='')}@db/shop"


def as_query(secret: str) -> str:
    return f"postgresql://db/shop?password={urllib.parse.quote(secret, safe='')}&sslmode=disable"


SOURCES = st.sampled_from([as_pairs, as_url, as_query])


@given(SECRETS, SECRETS, SECRETS, SOURCES, HOLDERS)
def test_printed_settings_show_no_secret(
    of_database: str, of_kafka: str, of_spark: str, source: Any, holder: str
) -> None:
    loaded = load(
        None,
        {
            "name": "orders",
            "data_source": source(of_database),
            "kafka": {"bootstrap.servers": "k:1", holder: of_kafka},
            "spark": {"spark.authenticate.secret": of_spark},
        },
    )
    shown = dict(loaded.shown)
    for text in (repr(loaded), json.dumps(shown), yaml.safe_dump(shown), yaml.safe_dump(shown, allow_unicode=True)):
        assert MARK not in text
    assert shown["kafka"][holder] == MASK
    assert shown["spark"] == {"spark.authenticate.secret": MASK}
    for secret in (of_database, of_kafka, of_spark):
        assert MARK not in loaded.secrets.mask(f"so {secret} it {json.dumps(secret)} is {secret!r} {source(secret)}")


@given(SECRETS, SOURCES, HOLDERS, st.sampled_from(["sasl.pasword", "security.protocol", "acks", "debug", "sasl"]))
@example("hunter2,", as_pairs, "sasl.password", "debug")  # the client repeats a part of this value
def test_no_report_shows_a_secret(secret: str, source: Any, holder: str, wrong: str) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        load(
            None,
            {
                "name": "a b", "data_source": source(secret), "shards": 0, "password": secret,
                "kafka": {holder: secret, wrong: secret}, "producer": secret, "spark": {"spark.x": [secret]},
            },
        )  # fmt: skip
    assert MARK not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.text(_CHARACTERS, max_size=4), st.text(_CHARACTERS, max_size=4))
@example("a ", "")  # the part behind the blank is no pair
def test_a_malformed_data_source_is_not_repeated(before: str, after: str) -> None:
    dsn = f"host='db' port=x password={before}{MARK}{after}"
    with pytest.raises(ConfigurationInvalid) as caught:
        load(None, {"name": "orders", "data_source": dsn, "kafka": {"bootstrap.servers": "k:1"}})
    assert MARK not in str(caught.value)


@given(SECRETS)
def test_no_log_line_shows_a_secret(secret: str) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(Masking(Secrets([secret]), logging.Formatter("%(message)s %(field)s")))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        int(as_url(secret))
    except ValueError:
        logger.exception("it failed with %s", secret, extra={"field": {"password": secret}}, stack_info=True)
    assert "it failed with" in written.getvalue()
    assert "Traceback" in written.getvalue()
    assert MARK not in written.getvalue()
