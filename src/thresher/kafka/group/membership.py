"""Whether a consumer's group metadata names a member of the group.

By the member in the metadata, a broker refuses the offsets of a member that was removed. A consumer that has lost its
membership has metadata without a member. The broker accepts offsets with such metadata in a transaction, even while the
group has other members: it takes them for those of a program that does not use group membership.
"""

import struct

# librdkafka's serialized form: this name, the generation, then zero-terminated texts, first group and member.
_NAME = b"CGMDv2:"


def is_member(metadata: object) -> bool:
    """Return whether the result of `consumer_group_metadata()` names a member. An unknown form raises `TypeError`."""
    if not isinstance(metadata, bytes) or not metadata.startswith(_NAME):
        raise TypeError(f"the client's group metadata has a form that we do not know: {metadata!r}")
    content = metadata[len(_NAME) :]
    (generation,) = struct.unpack_from("=i", content)
    _group, _, rest = content[4:].partition(b"\0")
    member, _, _ = rest.partition(b"\0")
    return generation >= 0 and bool(member)
