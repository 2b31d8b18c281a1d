"""Rows read ahead of the publisher, wherever they come from."""
