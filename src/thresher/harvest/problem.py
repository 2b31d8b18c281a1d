"""What can be wrong with how a harvest is used."""

from thresher.service.problem import ServiceMisused


class HarvestMisused(ServiceMisused):
    """A call that cannot be meant: a harvest is started once, and waited for when it was."""
