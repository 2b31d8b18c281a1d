"""One message that is in progress."""

Id = tuple[int, int]
# By what a message is known wherever it goes: its origin id, and when it was sent first.
Origin = tuple[int, int, int]


class Started:
    """One message in progress. Not a dataclass: there may be millions."""

    __slots__ = (
        "content", "deadline_ms", "enqueued_ms", "id", "offset", "origin_id", "patience_ms", "queue", "queued_ms",
        "reject_kind", "reject_reason", "started_ms", "undelivered", "written_ms",
    )  # fmt: skip

    def __init__(self, id_: Id, origin: Origin, queue: bytes, content: bytes, *, offset: int, now_ms: int) -> None:
        self.id, self.queue = id_, queue
        # Most messages are delivered once: these share one pair of numbers.
        self.origin_id, self.enqueued_ms = id_ if origin[:2] == id_ else origin[:2], origin[2]
        # The Start, as it was read; None once the message is in progress no more.
        self.content: bytes | None = content
        # From which offset on markers must be read to know of it, and when the Start there was written.
        self.offset, self.written_ms = offset, now_ms
        self.started_ms = now_ms
        self.deadline_ms = self.queued_ms = now_ms
        # The time-out that the deadline rests on; 0 where nobody is waited for: a delay, a nack, a reject.
        self.patience_ms = 0
        self.undelivered = False
        # Why it is to become a dead letter, and by whom: its application, or the topic of its queue.
        self.reject_reason: str | None = None
        self.reject_kind = "rejected"

    @property
    def origin(self) -> Origin:
        """By what it is known: another message comes to have its id where the message topic was made anew."""
        return (*self.origin_id, self.enqueued_ms)
