"""The dialogue of the commands that step over batches which no client can decompress: show them, ask, move, count."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from thresher.cli.output import counted, emit_json, note, require_consent, require_terminal, result, sentence

T = TypeVar("T")


def step_over_batches(
    command: str,
    find: Callable[[], Sequence[T]],
    move: Callable[[T], None],
    *,
    where: Callable[[T], str],
    plain: Callable[[T], dict[str, Any]],
    lost: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Step over what `find` returns. `where` names a batch's place, `lost` says what is lost with it.

    The batches are shown before the question, also if there is no terminal to ask on. With JSON, they are notes.
    """
    found = find()
    show = note if as_json else sentence
    for each in found:
        batch: Any = plain(each)["batch"]
        show(f"{where(each)}, offsets {batch['first']} to {batch['after'] - 1} cannot be read")
    if found and not yes:
        require_terminal(command)
        require_consent(f"step over these batches? {lost}")
    for each in found:
        move(each)
    if as_json:
        emit_json({"batches": [plain(each) for each in found]})
    else:
        result(counted(len(found), "batch was stepped over", "batches were stepped over"))
