"""When a producer's transactions begin, and the time-outs within which its answers are certain."""
