"""Backups of tables: full ones and their increments in a directory, and tables made from them."""
