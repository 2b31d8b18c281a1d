"""How a process is observed: metrics, logs and HTTP pages."""
