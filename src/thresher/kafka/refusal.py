"""Classifies Kafka's errors by their subject: one record, one topic, the client, or nothing lasting.

The subject decides the reaction: a dead letter, a held topic, exit code 4, or a retry.
"""

import enum

from confluent_kafka import KafkaError, KafkaException, Message


class Refusal(enum.Enum):
    """The subject of an error: the thing that has to change before a retry can succeed."""

    ROW = "row"
    """The record: the topic does not accept it."""

    SIZE = "size"
    """The record: it is too large, by itself or together with others."""

    TIME = "time"
    """The record's timestamp: its own, or the one that a clock set."""

    TOPIC = "topic"
    """The topic: it does not exist."""

    TOPIC_DENIED = "topic-denied"
    """The topic: we lack the permission."""

    CLIENT = "client"
    """The client: its credentials, its permissions, or its request."""

    CAUSED_BY_ANOTHER = "caused-by-another"
    """Another record of the transaction: the fault of that record failed this one too."""

    FENCED = "fenced"
    """The producer: another one with its transactional id has taken over, or the client had a fatal error."""

    TRANSIENT = "transient"
    """Nothing lasting: a retry may succeed."""


_KINDS: dict[int, Refusal] = {
    **dict.fromkeys(
        (KafkaError._FENCED, KafkaError._FATAL, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED),
        Refusal.FENCED,
    ),
    **dict.fromkeys(
        (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE), Refusal.SIZE
    ),
    **dict.fromkeys(
        (
            KafkaError.INVALID_RECORD,
            KafkaError.TOPIC_EXCEPTION,
            KafkaError.POLICY_VIOLATION,
            KafkaError._INVALID_ARG,
        ),
        Refusal.ROW,
    ),
    KafkaError.INVALID_TIMESTAMP: Refusal.TIME,
    # The client reports an unknown partition where a topic was deleted while records were queued for it.
    **dict.fromkeys(
        (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION), Refusal.TOPIC
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Refusal.TOPIC_DENIED,
    **dict.fromkeys(
        (
            KafkaError._PURGE_QUEUE,
            KafkaError._PURGE_INFLIGHT,
            KafkaError._STATE,
            KafkaError._INVALID_DIFFERENT_RECORD,
        ),
        Refusal.CAUSED_BY_ANOTHER,
    ),
    **dict.fromkeys(
        (
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            KafkaError.INVALID_TRANSACTION_TIMEOUT,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.UNSUPPORTED_SASL_MECHANISM,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError._AUTHENTICATION,
            KafkaError._SSL,
            KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
            KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            KafkaError.UNSUPPORTED_VERSION,
            KafkaError._UNSUPPORTED_FEATURE,
        ),
        Refusal.CLIENT,
    ),
}


_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


def fenced(error: BaseException | None) -> bool:
    """Whether the broker fenced a producer by its epoch. A transaction time-out looks the same as a successor."""
    while error is not None:
        if isinstance(error, KafkaException) and error.args[0].code() in _FENCED:
            return True
        # An error of ours that was raised while handling the client's error has it as its context.
        error = error.__cause__ or error.__context__
    return False


# The refusals after which the broker certainly does not have the record.
_REFUSALS = frozenset({Refusal.ROW, Refusal.SIZE, Refusal.TIME, Refusal.TOPIC, Refusal.TOPIC_DENIED, Refusal.CLIENT})


def is_refusal(error: KafkaError) -> bool:
    """Return whether the broker, or the client before it, refused a record. Otherwise the outcome is unknown.

    The error of a delivery report has to be judged by `outcome` before.
    """
    return refusal_of(error) in _REFUSALS


# Properties of clients whose delivery reports `outcome` judges: how long they wait before they send a record again.
RETRIES = {"retry.backoff.ms": 1_000, "retry.backoff.max.ms": 1_000}
# A record that is answered for within this time was sent once at most: the client varies the pause by a fifth.
_FIRST_TRY_SECONDS = 0.75


def outcome(error: KafkaError, record: Message | None) -> KafkaError:
    """Return a delivery report's error; if the record may have arrived nevertheless, one that says so.

    The broker may refuse a second try after the first one arrived and its answer was lost: the topic's configuration,
    or our permission, has changed meanwhile. The client does not say how often it sent a record. So a refusal counts
    only if it came before a second try was possible, or if the record never had a partition to be sent to.
    Without a `record`, `produce` raised the error.
    """
    if record is None or not is_refusal(error) or record.partition() is None:
        return error
    seconds = record.latency()
    if seconds is not None and 0 <= seconds < _FIRST_TRY_SECONDS:
        return error
    why = f"{error.str()}; the client may have sent it more than once, and an earlier try may have arrived"
    return KafkaError(KafkaError._FAIL, why)


def refusal_of(error: KafkaError) -> Refusal:
    """Return an error's subject by its code. An unknown code may pass with time."""
    return _KINDS.get(error.code(), Refusal.TRANSIENT)
