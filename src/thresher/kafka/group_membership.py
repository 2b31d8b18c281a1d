"""Whether group metadata is a member's: by which a broker refuses the offsets of a member that was removed.

A consumer that lost its place in the group has metadata without a member. In a transaction the broker accepts offsets
with such metadata, even while the group has other members: it takes them for those of a program without a group.
"""

import struct

# librdkafka's serialized form: this name, the generation, then texts that end with a zero, as group and member.
_NAME = b"CGMDv2:"


def is_member(metadata: object) -> bool:
    """Return whether `consumer_group_metadata()` is that of a member. An unknown form is an error, never a guess."""
    if not isinstance(metadata, bytes) or not metadata.startswith(_NAME):
        raise TypeError(f"the client's group metadata has a form that we do not know: {metadata!r}")
    content = metadata[len(_NAME) :]
    (generation,) = struct.unpack_from("=i", content)
    _group, _, rest = content[4:].partition(b"\0")
    member, _, _ = rest.partition(b"\0")
    return generation >= 0 and bool(member)
