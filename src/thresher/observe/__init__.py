"""How a running part shows itself to others."""
