"""The model of a table, without files: types, schema, encoded keys, hashing, and predicates.

Everything here is a pure function or an immutable value, works on whole Arrow or numpy arrays, and
knows nothing of rowsets, deltas or disks."""
