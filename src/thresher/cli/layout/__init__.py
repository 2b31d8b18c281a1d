"""How help and tables fit the width of a terminal."""
