"""The form: a pydantic model with the keys of one part, their bounds, and rules between keys.

A rule is asked only where each key that it names could be read, so that one mistake is reported once. `fill_in` always
returns a form: a key with a problem has its default there. A form with problems must not be used for more than rules.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, field_validator

from thresher.config.refusal import NO_PROPERTIES, needs_a_number, why_refused
from thresher.config.report import Problem, no_such_key
from thresher.config.setting import Section, Setting, keys_of, settings_of

SINGLE_VALUE = str | int | float


@dataclass(frozen=True, slots=True)
class Rule:
    """A check between keys. It gets the form and the keys that were given, by name."""

    keys: frozenset[str]
    problems: Callable[[Any, Mapping[str, Any]], Iterator[Problem]]


class Form(BaseModel):
    """The base of every form: no key besides those declared, and no value in an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        """Return what keys must agree on."""
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
        raise ValueError(NO_PROPERTIES)  # noqa: TRY004 - pydantic takes this one
    lists = [str(name) for name, value in given.items() if isinstance(value, list | tuple)]
    wrong = [str(name) for name, value in given.items() if not isinstance(value, SINGLE_VALUE | list | tuple)]
    problems = [f"{', '.join(wrong)}: a single value is needed"] if wrong else []
    problems += [f"{', '.join(lists)}: one text is needed, with commas instead of a list"] if lists else []
    if problems:
        raise ValueError("; ".join(problems))
    return {str(name): value for name, value in given.items()}


def lower_case(value: object) -> object:
    """Let a text be written in any case."""
    return value.lower() if isinstance(value, str) else value


def off_is_text(value: object) -> object:
    """Take back that YAML reads a bare `off` as false."""
    return "off" if value is False else value


Properties = Annotated[dict[str, Any], BeforeValidator(_single_values), Section()]
KafkaProperties = Annotated[dict[str, Any], BeforeValidator(_single_values), Section(of_kafka_client=True)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


def fill_in(
    form: type[FormT], given: Mapping[str, Any], *, troubled: Collection[str] = (), rules: Sequence[Rule] = ()
) -> tuple[FormT, list[Problem]]:
    """Return the form, as far as it can be filled in, and all that is wrong with what was given.

    Keys in `troubled` have a problem that is reported elsewhere: nothing is concluded from their absence. `rules` are
    asked besides those of the form.
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
