"""The form: a pydantic model with the configuration keys of one pipeline, their bounds, and rules between keys.

A rule is checked only if all keys that it names are valid, so that one mistake is reported once. `fill_in` always
returns a form, in which a key with a problem has its default. A form with problems may be used for rules only.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, field_validator

from thresher.config.refusal import NO_PROPERTIES, needs_a_number, why_refused
from thresher.config.report import Problem, no_such_key
from thresher.config.secret_files import SecretFiles, without_secrets
from thresher.config.setting import Section, Setting, keys_of, settings_of

SINGLE_VALUE = str | int | float


@dataclass(frozen=True, slots=True)
class Rule:
    """A check between keys. `problems` gets the form and the given values by key."""

    keys: frozenset[str]
    problems: Callable[[Any, Mapping[str, Any]], Iterator[Problem]]


class Form(BaseModel):
    """The base of every form: undeclared keys are refused, errors contain no value, and its `repr` no secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        """Return the rules between keys."""
        return ()

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what `repr` and `str` show of each key: nothing of a secret."""
        values = {setting.key: getattr(self, name) for name, setting in _by_name(type(self)).items()}
        yield from without_secrets(type(self), values, SecretFiles()).items()

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


def lower_case(value: object) -> object:
    """Return a text in lower case, and anything else unchanged."""
    return value.lower() if isinstance(value, str) else value


def off_is_text(value: object) -> object:
    """Return `off` for false: YAML reads a bare `off` as false."""
    return "off" if value is False else value


Properties = Annotated[dict[str, Any], BeforeValidator(_single_values), Section()]
KafkaProperties = Annotated[dict[str, Any], BeforeValidator(_single_values), Section(of_kafka_client=True)]
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
        if getattr(filled, name) in (None, "", (), {}):
            yield setting.key, f"it is missing: {setting.required.why}"
