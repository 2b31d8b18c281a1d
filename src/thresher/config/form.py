"""The form: a pydantic model with the configuration keys of one pipeline, their bounds, and rules between keys.

A rule is checked only if all keys that it names are valid, so that one mistake is reported once. `fill_in` always
returns a form, in which a key with a problem has its default. A form with problems may be used for rules only.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from thresher.config.refusal import NO_PROPERTIES, needs_a_number, why_refused
from thresher.config.report import Problem, no_such_key
from thresher.config.setting import Section, Setting, keys_of, settings_of
from thresher.core.secrets import Secret, SecretText, kept_properties, revealed

SINGLE_VALUE = str | int | float | Secret


@dataclass(frozen=True, slots=True)
class Rule:
    """A check between keys. `problems` gets the form and the given values by key."""

    keys: frozenset[str]
    problems: Callable[[Any, Mapping[str, Any]], Iterator[Problem]]


class Form(BaseModel):
    """The base of every form: undeclared keys are refused, and errors contain no value."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, arbitrary_types_allowed=True)

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        """Return the rules between keys."""
        return ()

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        if why := needs_a_number(_by_name(cls)[str(info.field_name)], value):
            raise ValueError(why)
        return value


FormT = TypeVar("FormT", bound=Form)


@cache
def _by_name(form: type[Form]) -> dict[str, Setting]:
    return dict(zip(form.model_fields, settings_of(form), strict=True))


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _single_values(given: object) -> object:
    if not isinstance(given, Mapping):
        raise ValueError(NO_PROPERTIES)  # noqa: TRY004 - pydantic reports only ValueError
    lists = [str(name) for name, value in given.items() if isinstance(value, list | tuple)]
    wrong = [str(name) for name, value in given.items() if not isinstance(value, SINGLE_VALUE | list | tuple)]
    problems = [f"{', '.join(wrong)}: a single value is needed"] if wrong else []
    problems += [f"{', '.join(lists)}: one text is needed, with commas instead of a list"] if lists else []
    if problems:
        raise ValueError("; ".join(problems))
    return {str(name): value for name, value in given.items()}


def kept_secret(shown: Callable[[str], str]) -> tuple[BeforeValidator, PlainSerializer]:
    """Return the marks of a key whose text is a `Secret`; `shown` returns the text without secrets, or refuses it."""

    def kept(given: object) -> object:
        if not isinstance(given, SecretText):
            return given
        content = revealed(given)
        return Secret(content, shown=shown(content))

    return BeforeValidator(kept), PlainSerializer(_shown_as_json, when_used="json")


def _shown_as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _shown_as_json(each) for name, each in value.items()}
    return str(value) if isinstance(value, Secret) else value


def lower_case(value: object) -> object:
    """Return a text in lower case, and anything else unchanged."""
    return value.lower() if isinstance(value, str) else value


def off_is_text(value: object) -> object:
    """Return `off` for false: YAML reads a bare `off` as false."""
    return "off" if value is False else value


Properties = Annotated[dict[str, Any], BeforeValidator(_single_values), Section()]
# Secrets are `Secret`; in the JSON of a form, as `config show` prints it, they are what they show.
KeptSecrets = Annotated[
    dict[str, Any], AfterValidator(kept_properties), PlainSerializer(_shown_as_json, when_used="json")
]
KafkaProperties = Annotated[KeptSecrets, BeforeValidator(_single_values), Section(of_kafka_client=True)]
SparkProperties = Annotated[KeptSecrets, BeforeValidator(_single_values), Section()]
Texts = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


def fill_in(
    form: type[FormT], given: Mapping[str, Any], *, troubled: Collection[str] = (), rules: Sequence[Rule] = ()
) -> tuple[FormT, list[Problem]]:
    """Return the form with all valid values, and every problem of the given values.

    Keys in `troubled` have a problem that is reported elsewhere: they are not reported as missing. `rules` are checked
    in addition to those of the form.
    """
    wrong: set[str] = set()
    problems: list[Problem] = []
    try:
        filled = form.model_validate(dict(given))
    except ValidationError as error:
        for each in error.errors(include_url=False, include_context=False):
            wrong.add(str(each["loc"][0]))
            problems.append(_problem(form, each))
        filled = form.model_validate({key: value for key, value in given.items() if key not in wrong})
    unclear = wrong | set(troubled)
    problems += _missing(form, filled, unclear)
    for rule in (*form.rules(), *rules):
        if not unclear & rule.keys:
            problems += rule.problems(filled, given)
    return filled, problems


def _problem(form: type[Form], error: Any) -> Problem:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return key, no_such_key(key, keys_of(form))
    by_key = {setting.key: setting for setting in settings_of(form)}
    return key, why_refused(by_key[str(error["loc"][0])], error)


def _missing(form: type[Form], filled: Form, unclear: Collection[str]) -> Iterator[Problem]:
    for name, setting in _by_name(form).items():
        if setting.required is None or setting.key in unclear:
            continue
        if not getattr(filled, name):
            yield setting.key, f"it is missing: {setting.required.why}"
