"""SQL on tables: the catalog and what it answers, procedures, properties and views."""
