package kudulite;

import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The rows of CHANGES FROM … TO …; of Spark 4.2 and later, and so in a file of its own. */
record Changes(CatalogTable table) implements Changelog {
  /** Java loads Changelog where it finds that a Changes is one, which must not be in Catalog. */
  static Changelog of(CatalogTable table) {
    return new Changes(table);
  }

  /** Puts the bounds into a question; Spark says of each whether it belongs to the range. */
  static MetadataBuilder bounds(ChangelogContext context, MetadataBuilder question) {
    ChangelogRange range = context.range();
    if (range instanceof ChangelogRange.TimestampRange times) {
      question.putLong("startMicroseconds", times.startingTimestamp());
      times.endingTimestamp().ifPresent(end -> question.putLong("endMicroseconds", end));
    } else if (range instanceof ChangelogRange.VersionRange versions) {
      question.putString("startVersion", versions.startingVersion());
      versions.endingVersion().ifPresent(end -> question.putString("endVersion", end));
    }
    return question.putBoolean("hasStart", range.startingBoundInclusive())
        .putBoolean("hasEnd", range.endingBoundInclusive());
  }

  public String name() {
    return table.name();
  }

  public Column[] columns() {
    return table.columns();
  }

  public boolean containsCarryoverRows() {
    return false;
  }

  public boolean containsIntermediateChanges() {
    return false;
  }

  public boolean representsUpdateAsDeleteAndInsert() {
    return false;
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return table.newScanBuilder(CaseInsensitiveStringMap.empty());
  }
}
