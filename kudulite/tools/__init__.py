"""The command line `kudulite`: looking into tables, and looking after them."""
