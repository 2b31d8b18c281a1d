"""The `thresher` command."""
