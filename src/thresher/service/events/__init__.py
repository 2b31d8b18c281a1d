"""The events of a service, the announcer that calls event handlers, and the meter of throughput."""
