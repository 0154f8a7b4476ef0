"""The command line `kudulite`: inspect tables, write to them, and maintain them."""
