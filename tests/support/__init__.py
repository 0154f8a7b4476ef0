"""Models, machines, doubles and tables that several tests share."""
