"""The progress record on the wire."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thresher.delivery.fate import FILTERED, SENT, Dead, Kind, dead
from thresher.delivery.problem import ForeignProgress
from thresher.delivery.row import Record, Row, RowList
from thresher.relay.protocol.progress import Origin, Progress, decode, encode, fitting, progress_of

ORIGIN = Origin(outbox_id="o" * 36, system_id="7" * 20, incarnation="1/1700000000.123456", term="t" * 36, shard=3)
BIGINT = st.integers(-(2**63), 2**63 - 1)

reasons = st.text(max_size=700)
deads = st.builds(dead, st.sampled_from(Kind), reasons, st.integers(0, 2**31 - 1), blocking=st.booleans())
fates = st.one_of(st.just(SENT), st.just(FILTERED), deads)
settled = st.lists(st.tuples(BIGINT, BIGINT, fates), max_size=30)


def progress(rows: list[tuple[int, int, Any]], **fields: Any) -> Progress:
    ids, times, chosen = ([each[column] for each in rows] for column in range(3))
    return Progress(
        **{"origin": ORIGIN, "number": 1, **fields, "ids": ids, "create_times": times, "fates": chosen}
    )  # fmt: skip


@given(rows=settled, number=st.integers(0, 2**63), failures=st.integers(0, 1000))
def test_an_encoded_record_decodes_to_the_same(rows: list[tuple[int, int, Any]], number: int, failures: int) -> None:
    given_ = progress(rows, number=number, failures=failures)
    found = decode(encode(given_))
    assert found == given_
    # Sent and filtered are equal as tuples.
    assert [type(fate) for fate in found.fates] == [type(fate) for fate in given_.fates]


@given(texts=st.lists(st.text(max_size=50), min_size=4, max_size=4), shard=st.integers(0, 10_000))
def test_the_origin_of_a_record_survives(texts: list[str], shard: int) -> None:
    outbox_id, system_id, incarnation, term = texts
    origin = Origin(outbox_id=outbox_id, system_id=system_id, incarnation=incarnation, term=term, shard=shard)
    assert decode(encode(progress([], origin=origin))).origin == origin


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_dead_row_keeps_its_reason(kind: Kind) -> None:
    fate = dead(kind, "schlimm ☠", 3, blocking=True)
    assert decode(encode(progress([(1, 2, SENT), (3, 4, fate)]))).fates == [SENT, fate]


def test_rows_are_told_apart_by_fate() -> None:
    made = progress([(1, 10, SENT), (2, 20, FILTERED), (3, 30, dead(Kind.REJECTED, "no"))])
    assert list(made.fates[:2]) == [SENT, FILTERED]
    assert isinstance(made.fates[2], Dead)


def test_a_record_lists_its_rows_in_order() -> None:
    plans: list[Any] = [Record("t", None, None, -1, 0, None), FILTERED, dead(Kind.MALFORMED, "bad")]
    rows = RowList([Row(9 - place, place, "t", None, plan) for place, plan in enumerate(plans)])
    made = progress_of(ORIGIN, 5, rows, 2)
    assert (made.number, made.failures, made.ids, made.create_times) == (5, 2, [9, 8, 7], [0, 1, 2])
    assert made.fates == [SENT, FILTERED, dead(Kind.MALFORMED, "bad")]


def test_a_reason_is_cut_and_made_storable() -> None:
    fate = dead(Kind.REJECTED, "\0\udc80" + "x" * 1_000)
    assert len(fate.reason) == 501
    assert "\0" not in fate.reason
    assert fate.reason.encode()


def other_arrow(metadata: dict[str, str] | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    schema = pa.schema([("x", pa.int64())], metadata)
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([1])], schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize("version", ["0", "2", "one"])
def test_another_version_is_refused_by_name(version: str) -> None:
    with pytest.raises(ForeignProgress, match=f"version '{version}'"):
        decode(other_arrow({"version": version}))


@pytest.mark.parametrize("data", [b"", b"{}", b"\0" * 100, b"\xff" * 8, other_arrow(), other_arrow({"version": "1"})])
def test_records_in_another_format_are_foreign(data: bytes) -> None:
    with pytest.raises(ForeignProgress):
        decode(data)


@given(data=st.binary(max_size=300))
def test_any_bytes_are_foreign(data: bytes) -> None:
    with pytest.raises(ForeignProgress):
        decode(data)


def test_a_truncated_record_is_foreign() -> None:
    whole = encode(progress([(1, 2, SENT), (3, 4, dead(Kind.REJECTED, "no"))]))
    unexpected = {}
    # The end marker of the compressed stream may be missing.
    for length in range(len(whole) - 8):
        try:
            decode(whole[:length])
        except ForeignProgress:
            continue
        except Exception as error:  # noqa: BLE001 - collected
            unexpected[length] = repr(error)
    assert not unexpected


@settings(deadline=None)
@given(
    plans=st.lists(st.one_of(st.just(FILTERED), deads), max_size=60),
    limit=st.integers(4_096 + 64 + 4 * 501 + 20, 40_000),
)
def test_rows_that_fit_stay_within_the_limit(plans: list[Any], limit: int) -> None:
    rows = RowList([Row(place * 2**40 + 12345, place * 2**50, "t", None, plan) for place, plan in enumerate(plans)])
    fit = fitting(rows, limit)
    assert (fit >= 1) is bool(rows)
    assert len(encode(progress_of(ORIGIN, 2**62, rows[:fit], 99))) <= limit


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1_000), limit=st.integers(5_000, 200_000))
def test_many_rows_that_do_not_compress_stay_within_the_limit(seed: int, limit: int) -> None:
    draw = random.Random(seed)
    drawn = [Row(draw.getrandbits(63), draw.getrandbits(63), "t", None, FILTERED) for _ in range(12_000)]
    rows = RowList(drawn)
    fit = fitting(rows, limit)
    assert len(encode(progress_of(ORIGIN, 1, rows[:fit], 0))) <= limit


def test_one_row_always_fits() -> None:
    assert fitting(RowList([Row(1, 1, "t", None, dead(Kind.REJECTED, "x" * 500))]), 10) == 1
    assert fitting(RowList(), 10) == 0
