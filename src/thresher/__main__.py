"""`python -m thresher` is the `thresher` command."""

from thresher.cli.app import main

if __name__ == "__main__":
    main()
