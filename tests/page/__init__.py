"""The page of the server without a browser: its files, and its scripts that know none."""
