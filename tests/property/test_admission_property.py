"""Only messages that a Kafka record and the table can hold are admitted, whatever the input is."""

import hashlib
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from thresher.outbox import InvalidMessage, Limits, Message, Shape
from thresher.outbox.admission import Admission
from thresher.outbox.shape import BUCKETS, bucket_of

anything = st.one_of(st.none(), st.binary(), st.text(), st.integers(), st.text(st.characters(codec=None)))
headers = st.lists(st.tuples(st.one_of(st.text(), anything), anything), max_size=4)


@given(
    topic=anything,
    key=anything,
    value=anything,
    headers=headers,
    partition=st.one_of(st.none(), st.integers()),
    partition_key=anything,
)
def test_admitted_rows_fit_the_columns_of_the_table(
    topic: object,
    key: object,
    value: object,
    headers: list[tuple[object, object]],
    partition: object,
    partition_key: object,
) -> None:
    fields: dict[str, Any] = {"topic": topic, "key": key, "value": value, "headers": headers, "partition": partition}
    message = Message(**fields, partition_key=partition_key)  # type: ignore[arg-type]
    for shape, content in ((Shape.THRESHER, bytes), (Shape.GOHARVEST, str), (Shape.DEIMOS, bytes)):
        try:
            row = Admission(shape, Limits(message_bytes=120)).row(message)
        except InvalidMessage as error:
            assert error.field  # noqa: PT017
            assert error.rule  # noqa: PT017
            continue
        got_topic, got_key, got_value, names, values = row[:5]
        assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", str(got_topic))
        assert isinstance(names, tuple)
        assert isinstance(values, tuple)
        assert len(names) == len(values) == len(headers)
        for part in (got_key, got_value, *values):
            assert part is None or type(part) is content
            assert content is bytes or "\0" not in str(part)
        if shape is Shape.DEIMOS:
            assert row[5] is None or (type(row[5]) is str and "\0" not in row[5])
        else:
            assert partition_key is None
        assert all("\0" not in name and name.encode() for name in names if name)


@given(
    key=st.binary(),
    value=st.binary(),
    names=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=3),
)
def test_valid_bytes_are_admitted_unchanged(key: bytes, value: bytes, names: list[str]) -> None:
    pairs = [(name, name.encode()) for name in names]
    row = Admission(Shape.THRESHER, Limits()).row(Message(topic="t", key=key, value=value, headers=pairs))
    assert row == ("t", key, value, tuple(names), tuple(content for _, content in pairs), None, None)


@given(key=st.binary())
def test_a_bucket_is_the_first_byte_of_the_sha256(key: bytes) -> None:
    assert bucket_of(key) == hashlib.sha256(key).digest()[0] % BUCKETS
