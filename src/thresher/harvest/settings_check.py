"""Checks the settings of a program with the form that checks a file: the same bounds, rules and report.

1. The settings are turned into the keys of a file, whatever their types are.
2. The form converts values such as `shards="2"`, and one report names every problem. No server is contacted.
3. From then on only the form's values are used, and values that no file can hold, such as functions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from thresher.config.form import SINGLE_VALUE, fill_in
from thresher.config.loading import complete
from thresher.config.report import Problem, no_such_key
from thresher.core.errors import shorten
from thresher.db import TableName
from thresher.election.leadership import Leadership
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.form import RelayForm
from thresher.harvest.form_rules import OF_ELECTION
from thresher.relay.settings import GROUPS, Coordination, Settings, TopicLocking, as_mapping
from thresher.service.cool_down import STEP_DOWN_SECONDS

_OF_KAFKA = ("kafka", "producer")
# Settings that a program can give and a file cannot.
_WITHOUT_KEY = frozenset({"producer_factory"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSettings:
    """The checked settings of a program, in the types that a relay uses."""

    settings: Settings
    election: ElectionSettings | Leadership
    metrics_seconds: float
    step_down_seconds: float


def settings_of(form: RelayForm) -> Settings:
    """Return the settings that a form without problems holds."""
    return Settings(
        name=form.identity,
        data_source=form.data_source or "",
        outbox=form.table,
        shape=form.shape,
        delivery=form.delivery,
        kafka=form.kafka,
        producer=form.producer,
        shards=form.shards,
        settle=form.settle,
        dispatch=form.dispatch,
        poison=form.poison,
        transform=form.transform,
        archive_after_seconds=form.archive_after_seconds,
        archive_to=form.archive_to,
        limits=form.limits,
        coordination=form.coordination,
        topic_locking=form.locking,
    )


def election_of(form: RelayForm) -> ElectionSettings:
    """Return the election settings that a form without problems holds."""
    # With topic locks, every process works, and the locks decide on which topics.
    kind = ElectionKind.NONE if form.coordination is Coordination.TOPIC_LOCK else form.election
    return form.election_settings(kind, lease_seconds=form.lease_seconds, grace_seconds=form.grace_seconds)


def check_settings(
    settings: Settings,
    election: ElectionSettings | Leadership | str | None = None,
    *,
    metrics_seconds: float = 5.0,
    step_down_seconds: float = STEP_DOWN_SECONDS,
) -> CheckedSettings:
    """Return the checked settings of a program. Raises `ConfigurationInvalid` with every problem."""
    asked = _asked(election)
    by_locks = settings.coordination == Coordination.TOPIC_LOCK
    of_election = _keys_of_election(asked) if isinstance(asked, ElectionSettings) and not by_locks else {}
    grace, of_grace = _grace(asked)
    form = complete(
        RelayForm,
        {
            **_keys(settings),
            **of_election,
            "metrics_seconds": metrics_seconds,
            "step_down_seconds": step_down_seconds,
        },
        problems=[*_problems_without_key(settings), *of_grace],
        # An empty data source is allowed: libpq then reads its own environment variables.
        troubled=("data_source",) if settings.data_source == "" else (),
    ).form
    if isinstance(asked, ElectionSettings):
        taken = {"kind" if key == "election" else key: getattr(form, key) for key in of_election}
        asked = replace(asked, grace_seconds=grace, **taken)
    return CheckedSettings(
        settings=_with_what_no_file_holds(settings_of(form), settings),
        election=asked,
        metrics_seconds=form.metrics_seconds,
        step_down_seconds=form.step_down_seconds,
    )


def _keys(settings: Settings) -> dict[str, Any]:
    """Return the settings as the keys of a file, as far as they can be."""
    outbox: Any = settings.outbox
    keys: dict[str, Any] = {
        key: getattr(settings, key) for key in Settings.__slots__ if key not in {*_WITHOUT_KEY, *GROUPS}
    }
    keys["schema"] = outbox.schema if isinstance(outbox, TableName) else None
    if _is_dotted(outbox):
        # `_problems_without_key` reports it, in a program's words.
        del keys["outbox"]
    for section in _OF_KAFKA:
        if isinstance(keys[section], Mapping):
            keys[section] = {name: value for name, value in keys[section].items() if _fits_a_file(value)}
    if settings.producer_factory is not None:
        # The properties may be meant for the factory alone.
        del keys["producer"]
    for group, kind in GROUPS.items():
        value = getattr(settings, group)
        # A relay with a leader refuses the keys of locking, even with their defaults.
        if isinstance(value, Mapping | kind) and not (kind is TopicLocking and value == TopicLocking()):
            keys |= {key: each for key, each in as_mapping(value).items() if key in kind.__slots__}
    return {key: value for key, value in keys.items() if value is not None}


def _problems_without_key(settings: Settings) -> Iterator[Problem]:
    """Yield the problems of settings that a file cannot hold, or names in another way."""
    outbox: Any = settings.outbox
    if _is_dotted(outbox):
        schema, _, table = outbox.rpartition(".")
        literally = f"TableName(table={shorten(outbox)}) for a table with a dot in its name"
        yield "outbox", f"give outbox={shorten(table)}, schema={shorten(schema)}, or {literally}"
    for group, kind in GROUPS.items():
        value = getattr(settings, group)
        if not isinstance(value, Mapping | kind):
            yield group, f"{kind.__name__}(…) is needed, or a mapping of its settings"
        elif isinstance(value, Mapping):
            unknown = sorted(set(as_mapping(value)) - set(kind.__slots__))
            yield from ((f"{group}.{key}", no_such_key(key, kind.__slots__)) for key in unknown)
    factory: Any = settings.producer_factory
    if factory is not None and (not isinstance(factory, str) or not factory.partition(":")[2]):
        yield "producer_factory", "a function is given by its name, as package.module:function"


def _is_dotted(outbox: object) -> bool:
    return isinstance(outbox, str) and "." in outbox


def _with_what_no_file_holds(checked: Settings, settings: Settings) -> Settings:
    """Return the checked settings, with functions among the clients' properties and the producer factory added."""
    functions = {
        section: {name: value for name, value in getattr(settings, section).items() if not _fits_a_file(value)}
        for section in _OF_KAFKA
    }
    producer = checked.producer if settings.producer_factory is None else settings.producer
    return replace(
        checked,
        kafka={**checked.kafka, **functions["kafka"]},
        producer={**producer, **functions["producer"]},
        producer_factory=settings.producer_factory,
    )


def _fits_a_file(value: object) -> bool:
    """Whether a file could hold the value. Other values, such as a function that fetches a token, are not checked."""
    return isinstance(value, SINGLE_VALUE | Mapping | list | tuple)


def _asked(election: ElectionSettings | Leadership | str | None) -> ElectionSettings | Leadership:
    if election is None:
        return ElectionSettings()
    # The form reports an unknown kind.
    return ElectionSettings(kind=cast("ElectionKind", election)) if isinstance(election, str) else election


def _keys_of_election(asked: ElectionSettings) -> dict[str, Any]:
    """Return the kind of the election, and those of its keys that differ from their defaults."""
    kinds = {**OF_ELECTION, "leader_group": ElectionKind.NELI}
    usual = ElectionSettings()
    own = [key for key, kind in kinds.items() if kind == asked.kind and getattr(asked, key) != getattr(usual, key)]
    return {"election": asked.kind, **{key: getattr(asked, key) for key in own}}


def _grace(asked: ElectionSettings | Leadership) -> tuple[float, list[Problem]]:
    """Return an election's own grace and its problems. A file has only one grace, the relay's."""
    if not isinstance(asked, ElectionSettings):
        return 0.0, []
    form, problems = fill_in(RelayForm, {"grace_seconds": asked.grace_seconds})
    return form.grace_seconds, [(f"election.{key}", why) for key, why in problems if key == "grace_seconds"]
