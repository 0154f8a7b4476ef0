package kudulite;

import java.util.Arrays;
import java.util.List;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** A scan with its own columns and filters; as batches of columns, and with statistics. */
class FrontScan extends PythonScan implements SupportsReportStatistics {
  final Load load;
  final StructType schema;
  final CaseInsensitiveStringMap options;
  final Filter[] filters;
  private boolean isStream;

  FrontScan(Load load, StructType schema, CaseInsensitiveStringMap options, Filter[] filters) {
    super(new Planner.Source(load, filters), DefaultSource.NAME, schema, options, filters);
    this.load = load;
    this.schema = schema;
    this.options = options;
    this.filters = filters;
  }

  public String description() {
    return DefaultSource.NAME + " " + options.get("path") + " ReadSchema: " + schema.simpleString()
        + " PushedFilters: " + Arrays.toString(filters);
  }

  public Batch toBatch() {
    return new FrontBatch(this, super.toBatch());
  }

  public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
    isStream = true;
    return super.toMicroBatchStream(checkpointLocation);
  }

  /** Batches of columns, but for a stream, which Spark's own reader of Python sources reads. */
  public Scan.ColumnarSupportMode columnarSupportMode() {
    return isStream ? Scan.ColumnarSupportMode.UNSUPPORTED : Scan.ColumnarSupportMode.SUPPORTED;
  }

  public Statistics estimateStatistics() {
    OptionalLong rows = load.rows();
    return new Size(rows, rows.isEmpty() ? rows
        : OptionalLong.of(rows.getAsLong() * (schema.defaultSize() + 8)));
  }

  private record Size(OptionalLong numRows, OptionalLong sizeInBytes) implements Statistics {}

  /** Whether the rows need not be read, as for count(*): no column is asked for. */
  private boolean isCount() {
    return schema.isEmpty() && filters.length == 0 && load.canCount();
  }

  private List<Object> parts() {
    return List.of(load, schema, options, List.of(filters));
  }

  /** Equal for equal scans of one load(), so that Spark runs what it needs twice only once. */
  private record FrontBatch(FrontScan scan, Batch python) implements Batch {
    public InputPartition[] planInputPartitions() {
      return scan.isCount() ? EmptyRows.split(scan.load.counted()) : python.planInputPartitions();
    }

    public PartitionReaderFactory createReaderFactory() {
      return new PythonBatches.Factory(scan.isCount() ? null : python.createReaderFactory());
    }

    public boolean equals(Object other) {
      return other instanceof FrontBatch batch && scan.parts().equals(batch.scan.parts());
    }

    public int hashCode() {
      return scan.parts().hashCode();
    }
  }

  /** So many rows without columns: one batch, and nothing is read. */
  static class EmptyRows implements InputPartition, PartitionReader<ColumnarBatch> {
    private static final int ROWS_MAX = 1 << 24;

    private final int rows;
    private boolean isDone;

    EmptyRows(int rows) {
      this.rows = rows;
    }

    static InputPartition[] split(long rows) {
      InputPartition[] parts = new InputPartition[(int) ((rows + ROWS_MAX - 1) / ROWS_MAX)];
      Arrays.setAll(parts,
          i -> new EmptyRows((int) Math.min(ROWS_MAX, rows - (long) i * ROWS_MAX)));
      return parts;
    }

    PartitionReader<ColumnarBatch> reader() {
      return new EmptyRows(rows);
    }

    public boolean next() {
      boolean isFirst = !isDone;
      isDone = true;
      return isFirst;
    }

    public ColumnarBatch get() {
      return new ColumnarBatch(new ColumnVector[0], rows);
    }

    public void close() {}
  }
}
