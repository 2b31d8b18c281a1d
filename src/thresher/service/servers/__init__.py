"""The servers that a process needs: probes, whether each server answers, and log lines about lost servers."""
