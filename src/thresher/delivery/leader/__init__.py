"""Parts that the drivers of all publishing pipelines share."""
