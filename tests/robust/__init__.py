"""Bad input, exhausted memory and abrupt ends: Python always gets an exception."""
