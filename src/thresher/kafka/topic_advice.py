"""Advice on the configuration of topics that we write or read: what a person should change, and what to write for it.

Advice stops nothing: what a pipeline cannot work with, it refuses by itself. One rule for each setting, for topics of
ours and of others; the caller says what it needs of each topic.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

from confluent_kafka import KafkaError

from thresher.kafka.admin import Admin, TopicFacts

# Kafka's default. A reader holds a whole batch of it, decompressed.
USUAL_BATCH_BYTES = 1_048_588
# How far a batch may expand: gzip and zstd, and lz4, to which a broker may be told to compress each batch again.
_FACTOR, _LZ4_FACTOR = 1_000, 255
# A pipeline may stand for a weekend before somebody looks.
_LEAST_RETENTION_MS = 3 * 86_400_000
_FEW_COPIES = 3
_SAFE = 2
# For `exact`.
NO_UNCLEAN_LEADER: Mapping[str, tuple[str, str]] = {
    "unclean.leader.election.enable": (
        "false",
        "an out-of-sync replica may become leader, and the records that it lacks are lost",
    )
}

# A topic's settings. And a change: the setting, the reason, and the value to set, if one is right for all.
Config = Mapping[str, str]
Change = tuple[str, str, str | int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicUse:
    """A topic, and what its configuration must give."""

    name: str
    # The largest batch that is written to it; and the largest that its readers have memory for.
    least_bytes: int = 0
    most_bytes: int = USUAL_BATCH_BYTES
    # Settings that should have these values, each with the reason.
    exact: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # Whether programs that are not ours write to it, and choose its codec.
    compressed_by_others: bool = False
    # Whether records must stay until they are read; and whether each must, and not only the last one of a key.
    read_later: bool = False
    each_record: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One setting to change. `mend` is what to write, in the form of `kafka-configs --add-config`."""

    topic: str
    setting: str
    value: str
    why: str
    mend: str = ""

    def __str__(self) -> str:
        text = f"{self.topic}: {self.setting} is {self.value}: {self.why}"
        return f"{text}; set {self.mend}" if self.mend else text

    def plain(self) -> dict[str, str]:
        """Return the advice for JSON."""
        return asdict(self)


def topic_advice(admin: Admin, uses: Iterable[TopicUse]) -> list[Advice]:
    """Ask the cluster by two requests, and return the advice. Raises `KafkaException` if it does not answer.

    A topic that does not exist yet needs none. One whose configuration we may not read is named.
    """
    wanted = {use.name: use for use in uses}
    if not wanted:
        return []
    facts, configs = admin.facts(list(wanted)), admin.topic_configs(list(wanted))
    return [
        each
        for name, use in wanted.items()
        if isinstance(found := facts[name], TopicFacts)
        for each in advice_of(use, configs[name], copies=found.copies)
    ]


def advice_of(use: TopicUse, config: Config | KafkaError, *, copies: int) -> Iterator[Advice]:
    """Yield the advice for one topic, with `copies` replicas of each partition."""
    if isinstance(config, KafkaError):
        why = f"it could not be read ({config.str()}), so nothing is known of its limits: grant DescribeConfigs on it"
        yield Advice(topic=use.name, setting="the configuration", value="hidden", why=why)
        return
    for setting, why, wanted in (
        *_of_memory(use, config),
        *((setting, why, wanted) for setting, (wanted, why) in use.exact.items() if config[setting] != wanted),
        *_of_retention(use, config),
        *_of_copies(config, copies),
    ):
        mend = f"{setting}={wanted}" if wanted is not None else ""
        yield Advice(topic=use.name, setting=setting, value=config[setting], why=why, mend=mend)


def _of_memory(use: TopicUse, config: Config) -> Iterator[Change]:
    most = int(config["max.message.bytes"])
    if most < use.least_bytes:
        yield "max.message.bytes", f"batches of {use.least_bytes:,} bytes would be refused", use.least_bytes
    elif most > use.most_bytes:
        why = f"a batch may take {_shown(most * _FACTOR)} in each reader once it is decompressed"
        yield "max.message.bytes", why, max(use.most_bytes, use.least_bytes)
    if use.compressed_by_others and config["compression.type"] == "producer":
        why = (
            f"producers choose the codec, and a batch may take {_shown(most * _FACTOR)} in each reader: give readers "
            "that much memory, or grant Write to programs that you trust; compression.type=lz4 makes it at most "
            f"{_shown(most * _LZ4_FACTOR)}, on brokers with gigabytes of heap"
        )
        yield "compression.type", why, None


def _of_retention(use: TopicUse, config: Config) -> Iterator[Change]:
    policy, removes = config["cleanup.policy"], "delete" in config["cleanup.policy"]
    if use.each_record and "compact" in policy:
        yield "cleanup.policy", "all but the last record of a key are removed, perhaps unread", "delete"
    if use.read_later and removes and 0 <= int(config["retention.ms"]) < _LEAST_RETENTION_MS:
        yield "retention.ms", "records are removed unread if their reader stands for longer", _LEAST_RETENTION_MS
    if use.read_later and removes and int(config["retention.bytes"]) >= 0:
        yield "retention.bytes", "a burst of records removes others before they are read", -1


def _of_copies(config: Config, copies: int) -> Iterator[Change]:
    least = int(config["min.insync.replicas"])
    if copies >= _FEW_COPIES and least < _SAFE:
        yield "min.insync.replicas", "a record that one broker alone has may be lost with it", _SAFE
    elif copies > 1 and least >= copies:
        yield "min.insync.replicas", "writes stop as soon as one broker is down", copies - 1


def _shown(size: int) -> str:
    return f"{size / 1_000_000_000:.1f} GB" if size >= 1_000_000_000 else f"{size / 1_000_000:.0f} MB"
