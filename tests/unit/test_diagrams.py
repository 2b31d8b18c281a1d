"""The Mermaid diagrams of the pages parse, by the part of the grammar that the pages use.

The grammar is stricter than Mermaid's: a line that it does not know is an error, and so is a node that is not defined.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The number of diagrams that each page must have.
WITH_DIAGRAMS = {"README.md": 1, "docs/pictures.md": 4}

PLAIN = r"[^\[\](){}|<>\"]+"
NODE = rf'(\w+)(?:\[{PLAIN}\]|\["[^"]+"\]|\[\({PLAIN}\)\]|\[\[{PLAIN}\]\]|\{{{PLAIN}\}})?'
ARROW = r'(?:-->|-\.->|-- (?:"[^"]+"|\w+) -->|-\. "[^"]+" \.->)'
EDGE = re.compile(rf"{NODE} {ARROW} {NODE}")
ALONE = re.compile(rf"{NODE}")
SUBGRAPH = re.compile(rf"subgraph (\w+)(?: \[{PLAIN}\])?")
PARTICIPANT = re.compile(r"participant (\w+) as [^;#]+")
MESSAGE = re.compile(r"(\w+)(?:->>|-->>)(\w+): [^;#]+")
REMARK = re.compile(r"Note (?:over (\w+)(?:,(\w+))?|(?:left|right) of (\w+)): [^;#]+")


class Unparsable(Exception):
    """A line of a diagram does not fit the grammar."""


def diagrams(text: str) -> list[str]:
    return re.findall(r"^```mermaid\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def parse(diagram: str) -> None:
    head, *lines = [line.strip() for line in diagram.splitlines() if line.strip()]
    if re.fullmatch(r"flowchart (LR|TD)", head):
        _flowchart(lines)
    elif head == "sequenceDiagram":
        _sequence(lines)
    else:
        raise Unparsable(head)


def _flowchart(lines: list[str]) -> None:
    depth, labelled, used = 0, set[str](), set[str]()
    for line in lines:
        if SUBGRAPH.fullmatch(line):
            depth += 1
        elif line == "end":
            depth -= 1
        elif found := EDGE.fullmatch(line) or ALONE.fullmatch(line):
            names = {name for name in found.groups() if name}
            used |= names
            labelled |= {name for name in names if re.search(rf"\b{name}[\[{{]", line)}
        else:
            raise Unparsable(line)
    if depth or used - labelled:
        raise Unparsable(f"{depth} subgraphs are open, without a label: {sorted(used - labelled)}")


def _sequence(lines: list[str]) -> None:
    known: set[str] = set()
    for line in lines:
        if found := PARTICIPANT.fullmatch(line):
            known.add(found[1])
        elif found := MESSAGE.fullmatch(line) or REMARK.fullmatch(line):
            if unknown := {name for name in found.groups() if name} - known:
                raise Unparsable(f"{line}: {sorted(unknown)}")
        else:
            raise Unparsable(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_diagram_parses(page: Path) -> None:
    found = diagrams(page.read_text())
    assert len(found) >= WITH_DIAGRAMS.get(str(page.relative_to(ROOT)), 0)
    for diagram in found:
        parse(diagram)


@pytest.mark.parametrize(
    "diagram",
    [
        "graph up\n a[A] --> b[B]",
        "flowchart LR\n a[A] -> b[B]",
        "flowchart LR\n a[A --> b[B]",
        "flowchart LR\n a[A] --> b",
        "flowchart LR\n subgraph s\n a[A] --> b[B]",
        "flowchart LR\n a[say (it)] --> b[B]",
        "sequenceDiagram\n participant A as a\n A->>B: hello",
        "sequenceDiagram\n participant A as a\n A->A: hello",
        "sequenceDiagram\n participant A as a\n Note over A: one; two",
    ],
)
def test_a_broken_diagram_is_found(diagram: str) -> None:
    with pytest.raises(Unparsable):
        parse(diagram)
