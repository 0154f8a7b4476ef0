package kudulite;

import java.util.HashMap;
import java.util.Map;
import java.util.function.UnaryOperator;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The rows of CHANGES FROM … TO …; of Spark 4.2 and later, and so in a file of its own. */
class Changes implements Changelog {
  private static final long EVENTS_PER_MICROSECOND = 4096;

  private final CatalogTable table;

  private Changes(CatalogTable table) {
    this.table = table;
  }

  /** Java loads Changelog where it finds that a Changes is one, which must not be in Catalog. */
  static Changelog of(CatalogTable table) {
    return new Changes(table);
  }

  /**
   * The window (start, end] as options. Spark says of each bound whether it belongs to the range; a
   * timestamp of Spark is all HybridTimes of its microsecond. `moment` finds that of a version.
   */
  static Map<String, String> range(ChangelogContext context, UnaryOperator<String> moment) {
    ChangelogRange range = context.range();
    Map<String, String> found = new HashMap<>();
    boolean hasStart = range.startingBoundInclusive();
    boolean hasEnd = range.endingBoundInclusive();
    if (range instanceof ChangelogRange.TimestampRange times) {
      put(found, "startTimestamp", first(times.startingTimestamp()),
          hasStart ? -1 : EVENTS_PER_MICROSECOND - 1);
      times.endingTimestamp().ifPresent(end -> put(found, "endTimestamp",
          first(end), hasEnd ? EVENTS_PER_MICROSECOND - 1 : -1));
    } else if (range instanceof ChangelogRange.VersionRange versions) {
      put(found, "startTimestamp",
          Long.parseLong(moment.apply(versions.startingVersion())), hasStart ? -1 : 0);
      versions.endingVersion().ifPresent(end ->
          put(found, "endTimestamp", Long.parseLong(moment.apply(end)), hasEnd ? 0 : -1));
    }
    return found;
  }

  /** The first HybridTime of a microsecond, the greatest one for times after it. */
  private static long first(long microseconds) {
    long last = Long.MAX_VALUE / EVENTS_PER_MICROSECOND - 1;
    return Math.max(0, Math.min(microseconds, last)) * EVENTS_PER_MICROSECOND;
  }

  private static void put(Map<String, String> options, String name, long moment, long distance) {
    options.put(name, Long.toString(moment + distance));
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
