"""Text for terminals and logs: what strangers wrote cannot move the cursor, hide text, or pass for a line of ours."""

import json
import re

_UNINDENTED = re.compile(r"\n(?![ \n]|\Z)")


def printable(text: str) -> str:
    r"""Return the text with every unprintable character escaped, such as `\x1b`. Line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)


def one_line(text: str) -> str:
    r"""Return the text with every unprintable character escaped, line ends too (`\n`). Tabs stay."""
    return printable(text).replace("\n", "\\n")


def indented(text: str) -> str:
    """Return the printable text with all lines but the first indented: none of them can pass for a line of ours."""
    return _UNINDENTED.sub("\n  ", printable(text))


def printable_json(text: str) -> str:
    """Return JSON with every unprintable character in its strings escaped as JSON does: it stays the same value."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
