"""Text for terminals and logs: what strangers wrote cannot move the cursor, hide text, or set a terminal's title."""

import json


def printable(text: str) -> str:
    r"""Return the text with every unprintable character escaped, such as `\x1b`. Line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)


def printable_json(text: str) -> str:
    """Return JSON with every unprintable character in its strings escaped as JSON does: it stays the same value."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
