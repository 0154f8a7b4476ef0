"""Client: tables, scans and sessions. Users import their names from `kudulite`."""
