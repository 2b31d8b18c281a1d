"""Helpers of the benches: servers, the order of measurements, and the report."""
