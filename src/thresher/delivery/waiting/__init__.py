"""Rows and topics that cannot be sent yet: why, for how long, and which later rows must not overtake them."""
