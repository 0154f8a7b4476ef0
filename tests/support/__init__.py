"""What several tests share: models, machines, doubles, tables."""
