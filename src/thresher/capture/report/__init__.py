"""What a capture adds to the pages of its process."""
