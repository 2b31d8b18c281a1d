"""Thresher moves messages between a service's database and Kafka without losing, inventing or reordering one."""

__version__ = "0.1.0"
