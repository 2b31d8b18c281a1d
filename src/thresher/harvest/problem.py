"""Errors in the use of a harvest."""

from thresher.service.problem import ServiceMisused


class HarvestMisused(ServiceMisused):
    """A call that cannot be meant: a harvest is started once, and waited for when it was."""
