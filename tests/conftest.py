pytest_plugins = ["thresher.testing.fixtures"]
