"""How Thresher is installed: from a checkout or a wheel that was made from one.

No package index has Thresher. Whatever has this name there is somebody else's: no text may tell to install it by name.
"""

_COMMAND = "pip install '.[{extras}]' in a checkout of Thresher"


def how_to_install(*extras: str) -> str:
    """Return the command that installs these extras."""
    return _COMMAND.format(extras=",".join(extras))
