"""The packages as a user gets them: their content, and that they run without a compiler."""
