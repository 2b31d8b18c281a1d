"""Fills in a form from a file, then the environment, then flags. Each layer overrides the one before, key by key.

`load` is enough for most forms. A pipeline with another file format translates the file first, and calls `complete`.
One `ConfigurationInvalid` reports every problem, without secrets; nothing is started.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from thresher.config.contradiction import contradictions
from thresher.config.document import read
from thresher.config.environment import from_environment
from thresher.config.form import Form, FormT, Rule, fill_in
from thresher.config.problem import ConfigurationInvalid
from thresher.config.refusal import NO_PROPERTIES
from thresher.config.report import Problem, as_text
from thresher.config.secret_files import read_files, secrets_of, without_secrets
from thresher.config.setting import keys_of, sections_of
from thresher.core.secrets import Secrets

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed(Generic[FormT]):
    """A valid form, with the keys that were given, the secrets, and the values for people."""

    form: FormT = field(repr=False)
    given: frozenset[str]
    secrets: Secrets
    # All keys as in a file, with every default and without secrets.
    shown: Mapping[str, Any] = field(repr=False)


def load(
    form: type[FormT],
    path: Path | None,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    warn: Callable[[str], object] = logger.warning,
    rules: Sequence[Rule] = (),
) -> Completed[FormT]:
    """Read and check a configuration. An absent flag is None in `flags`; `warn` gets every remark.

    `rules` are checked in addition to those of the form. Raises `ConfigurationInvalid` with every problem.
    """
    variables = from_environment(form, environment)
    given = {key: value for key, value in (read(path) if path is not None else {}).items() if value is not None}
    in_file = dict(given)
    covered = [problem for layer in (variables.keys, flags) for problem in lay_over(form, given, layer)]
    covered += contradictions(form, in_file, variables.keys, given)
    completed = complete(form, given, problems=[*variables.problems, *covered], remarks=variables.remarks, rules=rules)
    for remark in variables.remarks:
        warn(completed.secrets.mask(remark))
    return completed


def lay_over(form: type[Form], given: dict[str, Any], layer: Mapping[str, Any]) -> list[Problem]:
    """Override the given values by those of a layer. Sections are overridden property by property.

    Returns a problem for each overridden section that was no mapping: a layer must not hide a mistake.
    """
    sections = sections_of(form)
    covered: list[Problem] = []
    for key, value in layer.items():
        if key in sections and isinstance(value, Mapping) and isinstance(given.get(key), Mapping):
            given[key] = {**given[key], **value}
        elif value is not None and value != {}:
            if key in sections and not isinstance(given.get(key, {}), Mapping):
                covered.append((key, NO_PROPERTIES))
            given[key] = value
    return covered


def complete(
    form: type[FormT],
    given: Mapping[str, Any],
    *,
    problems: Iterable[Problem] = (),
    remarks: Iterable[str] = (),
    troubled: Collection[str] = (),
    name_of: Callable[[str], str] = str,
    rules: Sequence[Rule] = (),
) -> Completed[FormT]:
    """Read the secret files that are named, check every key and rule, and return the form.

    `problems` were found before; the keys in `troubled` have such a problem, and are not reported as missing. `remarks`
    on variables are added to the report, because a misspelt variable may be the cause. `name_of` returns the name under
    which a key was given. `rules` are checked in addition to those of the form. Raises `ConfigurationInvalid` with
    every problem.
    """
    values = dict(given)
    files = read_files(form, values)
    secrets = secrets_of(form, values, files)
    unread = {key.partition(".")[0] for key, _ in files.problems}
    filled, wrong = fill_in(form, values, troubled={*troubled, *unread}, rules=rules)
    report = [*problems, *((name_of(key), why) for key, why in [*files.problems, *wrong])]
    if report:
        report += [(variable, f"it {rest}") for variable, _, rest in (remark.partition(" ") for remark in remarks)]
        masked = [(secrets.mask(key), secrets.mask(why)) for key, why in report]
        raise ConfigurationInvalid(as_text(masked), masked)
    dumped = filled.model_dump(mode="json", by_alias=True, exclude_none=True)
    shown = without_secrets(form, {key: dumped[key] for key in keys_of(form) if key in dumped}, files)
    return Completed(form=filled, given=frozenset(values), secrets=secrets, shown=shown)
