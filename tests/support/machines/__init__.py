"""Random steps and killed processes, compared with a model."""
