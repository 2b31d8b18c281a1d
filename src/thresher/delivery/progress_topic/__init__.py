"""The topic of a pipeline's progress: whose it is, what of it is ours, and which topics are reserved."""
