"""`python -m thresher` is the `thresher` command. Like the command, it imports nothing from the working directory."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # Python has put the working directory first, where another user may have planted a module.
        del sys.path[0]
    from thresher.cli.app import main

    main()
