package kudulite;

import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.Arrays;
import java.util.Date;
import java.util.HashSet;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The table of a load(): written as Spark's own, and read with pruned columns and filters. */
class FrontTable extends PythonTable {
  private static final long EARLIEST = LocalDate.of(2, 1, 1).toEpochDay() * 86400L;
  private static final long LATEST = LocalDate.of(9999, 1, 1).toEpochDay() * 86400L;

  final Load load;
  private final StructType schema;

  FrontTable(Load load, StructType schema) {
    super(new Planner.Source(load), DefaultSource.NAME, schema);
    this.load = load;
    this.schema = schema;
  }

  /** Spark asks for them when it analyses a write, in whatever session that is. */
  public Set<TableCapability> capabilities() {
    ChangeRule.install();
    Set<TableCapability> all = new HashSet<>(super.capabilities());
    String setting = load.options.getOrDefault(Tablets.OPTION, "false");
    if (DefaultSource.isTrue(Tablets.OPTION, setting)) {
      all.remove(TableCapability.BATCH_WRITE);
    }
    return all;
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new Builder(load, schema, options);
  }

  private static class Builder implements SupportsPushDownFilters, SupportsPushDownRequiredColumns {
    private final Load load;
    private final CaseInsensitiveStringMap options;
    private StructType schema;
    private Filter[] filters = new Filter[0];

    Builder(Load load, StructType schema, CaseInsensitiveStringMap options) {
      // SELECT … WITH (…) gives a scan options of its own; the load's then do not hold for it.
      this.load = load.with(options);
      this.schema = schema;
      this.options = options;
    }

    public Filter[] pushFilters(Filter[] given) {
      if (!"false".equalsIgnoreCase(options.get("pushdown"))) {
        filters = Arrays.stream(given).filter(FrontTable::isOfPython).toArray(Filter[]::new);
      }
      return given;
    }

    public Filter[] pushedFilters() {
      return filters;
    }

    /** Leaves columns out, but none of the fields of a struct: Python has all of them. */
    public void pruneColumns(StructType required) {
      schema = new StructType(Arrays.stream(required.fieldNames())
          .map(name -> schema.apply(name)).toArray(StructField[]::new));
    }

    public Scan build() {
      return new FrontScan(load, schema, options, filters);
    }
  }

  /**
   * Whether Python has all dates and times in a filter. Its years are 1 to 9999, in any time zone,
   * and one literal outside would fail the query.
   */
  private static boolean isOfPython(Object part) {
    if (part instanceof Object[] parts) {
      return Arrays.stream(parts).allMatch(FrontTable::isOfPython);
    }
    if (part instanceof Filter) {
      scala.Product product = (scala.Product) part;
      return IntStream.range(0, product.productArity())
          .mapToObj(product::productElement).allMatch(FrontTable::isOfPython);
    }
    long second = part instanceof Date date ? Math.floorDiv(date.getTime(), 1000L)
        : part instanceof Instant instant ? instant.getEpochSecond()
        : part instanceof LocalDate day ? day.toEpochDay() * 86400L
        : part instanceof LocalDateTime time ? time.toEpochSecond(ZoneOffset.UTC) : EARLIEST;
    return EARLIEST <= second && second < LATEST;
  }
}
