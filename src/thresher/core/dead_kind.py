"""The kinds of dead rows: by what a row was set aside. The names are stored, and given to 'thresher dead --kind'."""

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
