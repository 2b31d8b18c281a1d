"""`thresher stack`, and the option that names a stack."""
