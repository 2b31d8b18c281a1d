"""A pipeline's progress topic: checks whose it is, reads our own records in it, and keeps rows out of such topics."""
