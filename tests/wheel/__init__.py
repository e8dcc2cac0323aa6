"""The packages as a user gets them: what they hold, and that they run where nothing compiles."""
