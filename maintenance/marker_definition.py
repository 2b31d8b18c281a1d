"""Compiles the markers' definition: run it after `marker.proto` was changed.

    python -m maintenance.marker_definition

The compiled definition works with every release of protobuf. Generated Python code would demand the newest of each
application that uses queues.
"""

import sys
from pathlib import Path

from grpc_tools import protoc

WIRE = Path(__file__).parents[1] / "src/thresher/queue/wire"


def compiled_into(file: Path) -> None:
    """Write the compiled definition to a file. Raises `RuntimeError` where protoc refuses the definition."""
    if code := protoc.main(["protoc", f"-I{WIRE}", f"--descriptor_set_out={file}", "marker.proto"]):
        raise RuntimeError(f"protoc ended with {code}")


if __name__ == "__main__":
    compiled_into(WIRE / "marker.binpb")
    sys.exit(0)
