"""Generates the Markdown table of a form's settings, and puts it between two marks on a page of the docs."""

import re
from collections.abc import Collection, Iterator

from pydantic import BaseModel

from thresher.config.environment import variable_of
from thresher.config.setting import Kind, Setting, settings_of
from thresher.config.wording import default_text, range_text

BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"
_HEAD = ("| key | meaning | values | default |", "| --- | --- | --- | --- |")


def table_of(form: type[BaseModel], keys: Collection[str] | None = None) -> str:
    """Return the table: one row for each key, or for each of `keys`, in the order of the form."""
    settings = [setting for setting in settings_of(form) if keys is None or setting.key in keys]
    return "\n".join((*_HEAD, *(f"| {' | '.join(_cells(setting))} |" for setting in settings)))


def with_table(page: str, form: type[BaseModel], keys: Collection[str] | None = None) -> str:
    """Return the page with the form's table between its marks. Raises `ValueError` if the page has no marks."""
    marked = re.compile(rf"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    if marked.search(page) is None:
        raise ValueError(f"the page has no place for the table: {BEGIN} and {END} are missing")
    return marked.sub(lambda _: f"{BEGIN}\n{table_of(form, keys)}\n{END}", page)


def _cells(setting: Setting) -> Iterator[str]:
    yield ", ".join([f"`{setting.key}`", *_other_names(setting)])
    yield _escaped(setting.description)
    yield _escaped(_values(setting))
    yield _escaped(_default(setting))


def _other_names(setting: Setting) -> Iterator[str]:
    usual = (f"--{setting.key.replace('_', '-')}",)
    if setting.flags != usual:
        yield from (f"`{flag}`" for flag in setting.flags)
    if len(setting.variables) > 1:
        yield f"`{variable_of(setting)}`"
    for each in setting.shorthands:
        yield f"`--{each.name}`"


def _values(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind is Kind.SECTION:
        return "properties"
    return "list" if setting.kind is Kind.LIST else range_text(setting.bounds, thousands=",")


def _default(setting: Setting) -> str:
    if setting.required is not None and setting.default_text is None:
        return "required"
    words = default_text(setting, thousands=",")
    of_words = setting.default_text is None and setting.kind is Kind.TEXT and setting.default is not None
    return f"`{words}`" if of_words else words or "none"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
