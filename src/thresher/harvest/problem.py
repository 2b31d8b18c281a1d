"""The error of a misused harvest."""

from thresher.service.problem import ServiceMisused


class HarvestMisused(ServiceMisused):
    """A wrong call: a harvest can be started once, and waited for only after its start."""
