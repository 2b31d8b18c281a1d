"""Reads rows ahead of the publisher, from any source."""
