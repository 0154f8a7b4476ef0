"""Dictionary models: what a table, its changes and its rowsets must show."""
