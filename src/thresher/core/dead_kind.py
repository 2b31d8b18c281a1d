"""The kinds of dead rows. The names are stored with the rows, and are the values of 'thresher dead --kind'."""

import enum


class Kind(enum.StrEnum):
    """Why a row can never be sent."""

    MALFORMED = "malformed"
    TOO_LARGE = "too-large"
    REJECTED = "rejected"
    NO_TOPIC = "no-topic"
    NO_PARTITION = "no-partition"
    NOT_AUTHORISED = "not-authorised"
    TRANSFORM = "transform"
