"""What tests of the Spark connector share."""
