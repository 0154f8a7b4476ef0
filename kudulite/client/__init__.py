"""Client: what users import; everything below it may change."""
