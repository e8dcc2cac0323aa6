"""The page of the server in headless Chromium: `make test-page`."""
