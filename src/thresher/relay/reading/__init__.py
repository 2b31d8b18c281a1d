"""Which pending rows are read next, and how far ahead."""
