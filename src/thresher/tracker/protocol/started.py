"""One message in progress."""

from thresher.tracker.protocol.contents import Content

Id = tuple[int, int]
# The identity that a message keeps in all deliveries: its origin id, and the time of its first sending.
Origin = tuple[int, int, int]


class Started:
    """One message in progress. Not a dataclass, to save memory: there may be millions."""

    __slots__ = (
        "content", "deadline_ms", "enqueued_ms", "id", "offset", "origin_id", "queue", "queued_ms", "reject_kind",
        "reject_reason", "started_ms", "timeout_ms", "undelivered", "written_ms",
    )  # fmt: skip

    def __init__(self, id_: Id, origin: Origin, queue: bytes, content: Content, *, offset: int, now_ms: int) -> None:
        self.id, self.queue = id_, queue
        # In most messages the id and the origin id are equal: these share one tuple.
        self.origin_id, self.enqueued_ms = id_ if origin[:2] == id_ else origin[:2], origin[2]
        # The Start; None once the message is no longer in progress.
        self.content: Content | None = content
        # The offset from which markers must be read to rebuild this message, and when the Start there was written.
        self.offset, self.written_ms = offset, now_ms
        self.started_ms = now_ms
        self.deadline_ms = self.queued_ms = now_ms
        # The time-out behind the deadline; 0 if no consumer has the message: after a delay, a nack or a reject.
        self.timeout_ms = 0
        self.undelivered = False
        # The reason and the kind of the dead letter: rejected by the application, or refused by the message topic.
        self.reject_reason: str | None = None
        self.reject_kind = "rejected"

    @property
    def origin(self) -> Origin:
        """The identity in all deliveries. An id may repeat after the message topic was recreated."""
        return (*self.origin_id, self.enqueued_ms)
