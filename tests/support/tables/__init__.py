"""Small tables, how they are written, and every way to read them."""
