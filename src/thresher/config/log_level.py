"""The log level, as a configuration names it."""

import enum


class LogLevel(enum.StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    OFF = "off"
