"""A command whose options are the flags of a form.

The form is imported when the command is called, and not before: the other commands work without its packages.
"""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.lazy_command import add_lazy_command, only_command

if TYPE_CHECKING:
    from pydantic import BaseModel

    from thresher.config.flags import Flag


def add_form_command(
    app: typer.Typer, name: str, function: Callable[..., None], form: "Callable[[], type[BaseModel]]"
) -> None:
    """Add a command that calls `function` with its own options and with `flags`, the values of the form's flags.

    The help lists the function's own options first, then the form's flags, then the function's keyword-only options.
    """

    add_lazy_command(
        app, name, inspect.getdoc(function), lambda: only_command(name, _with_flags(function, form()))
    )  # fmt: skip


def _with_flags(function: Callable[..., None], form: "type[BaseModel]") -> Callable[..., None]:
    from thresher.config.flags import flags_of, keys_from  # noqa: PLC0415

    flags = flags_of(form)

    @functools.wraps(function)
    def called(**values: Any) -> None:
        of_form = {flag.name: values.pop(flag.name) for flag in flags}
        function(**values, flags=keys_from(flags, of_form))

    options = [
        inspect.Parameter(flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(flag))
        for flag in flags
    ]
    own = [each for name, each in inspect.signature(function).parameters.items() if name != "flags"]
    first = [each for each in own if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    last = [each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY]
    called.__signature__ = inspect.Signature([*first, *options, *last])  # type: ignore[attr-defined]
    return called


def _option(flag: "Flag") -> Any:
    names = flag.names
    if flag.value_type is bool:
        # With --no-NAME, a flag can override a value of the environment or the file.
        names = tuple(f"{name}/--no-{name.removeprefix('--')}" for name in names)
    return Annotated[flag.value_type | None, typer.Option(*names, envvar=flag.variable, help=flag.help)]
