"""What cannot be sent yet, why, and for how long: topics, rows, and what must not overtake them."""
