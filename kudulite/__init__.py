"""kudulite: Apache Kudu's tablet storage engine as an embedded library."""
