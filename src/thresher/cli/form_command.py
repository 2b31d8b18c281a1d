"""A command whose options are the flags of a form.

The form is imported when the command is called, and not before: the other commands work without its packages.
"""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from pydantic import BaseModel

    from thresher.config.flags import Flag


def add_form_command(
    app: typer.Typer, name: str, function: Callable[..., None], form: "Callable[[], type[BaseModel]]"
) -> None:
    """Add a command that calls `function` with its own options and with `flags`: what the flags of the form say.

    In the help, the form's flags stand behind the function's own options, and before those that are keyword-only.
    """

    class FormCommand(TyperCommand):
        """Stands for the command in the list of commands, and makes it when it is called."""

        def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
            inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            inner.command(name)(_with_flags(function, form()))
            return typer.main.get_command(inner).make_context(info_name, args, parent, **extra)

    @app.command(name, cls=FormCommand, help=inspect.getdoc(function))
    def _() -> None:
        raise AssertionError("the context is that of the command with flags")


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
        # So that a flag can take back what the environment or the file says.
        names = tuple(f"{name}/--no-{name.removeprefix('--')}" for name in names)
    return Annotated[flag.value_type | None, typer.Option(*names, envvar=flag.variable, help=flag.help)]
