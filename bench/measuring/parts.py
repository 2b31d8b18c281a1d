"""The parts of a bench: which of them are measured, by `--only` and `--skip`."""

import argparse
from collections.abc import Sequence


def add_parts(parser: argparse.ArgumentParser, parts: Sequence[str]) -> None:
    """Add the two options. A part that takes minutes can be left out."""
    listed = ", ".join(parts)
    parser.add_argument("--only", metavar="PART,…", help=f"measure these parts alone, of: {listed}")
    parser.add_argument("--skip", metavar="PART,…", help="leave these parts out")


def chosen_parts(options: argparse.Namespace, parts: Sequence[str], *, usual: Sequence[str] = ()) -> list[str]:
    """Return the parts to measure, in their own order. Without `--only` these are the usual ones, or all.

    Raises `SystemExit`, with a line that lists the parts, for an unknown part.
    """
    only, skip = (_names(text, option, parts) for option, text in (("--only", options.only), ("--skip", options.skip)))
    return [part for part in parts if part in (only or usual or parts) and part not in skip]


def _names(text: str | None, option: str, parts: Sequence[str]) -> list[str]:
    names = text.split(",") if text else []
    for name in names:
        if name not in parts:
            raise SystemExit(f"{option}: {name!r} is none of {', '.join(parts)}")
    return names
