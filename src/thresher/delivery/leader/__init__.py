"""What the drivers of all pipelines that publish rows have in common."""
