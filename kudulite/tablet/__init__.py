"""Tablet: one horizontal partition of a table; its rowsets, its writes and its scans."""
