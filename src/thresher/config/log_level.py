"""The level of the log, as a form has it."""

import enum


class LogLevel(enum.StrEnum):
    """The least that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    OFF = "off"
