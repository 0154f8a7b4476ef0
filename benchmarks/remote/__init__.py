"""Tables behind a slow connection to an object store: the parts of object_store.py."""
