package kudulite;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.List;
import org.apache.arrow.vector.DecimalVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.PartitionEvaluator;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.arrow.ArrowFieldWriter;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.execution.arrow.ArrowWriter$;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.internal.ReadOnlySQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.TaskCompletionListener;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The rows of a write, as Arrow batches for the Python writer: rows of one binary column, an Arrow
 * stream of one batch each. Spark would make such batches, too, but it adds up the sizes of all
 * vectors after each row, and makes a BigDecimal of each decimal: nearly half of its work.
 */
class RowBatches extends AbstractIterator<InternalRow> {
  /** What Python gets; kudulite_spark/writer.py knows the name. */
  static final StructType SCHEMA = new StructType().add("kudulite rows", DataTypes.BinaryType);
  private static final int BYTES_MAX = 1 << 20;  // of a batch; more only for its last row

  private final Iterator<InternalRow> rows;
  private final StructType schema;
  private final ArrowWriter writer;
  private final ByteArrayOutputStream stream = new ByteArrayOutputStream();
  private UnsafeProjection projection;

  RowBatches(Iterator<InternalRow> rows, StructType schema) {
    this.rows = rows;
    this.schema = schema;
    VectorSchemaRoot root = ArrowWriter.create(schema, "UTC", true, false).root();
    writer = new ArrowWriter(root, root.getFieldVectors().stream().map(RowBatches::fieldWriter)
        .toArray(ArrowFieldWriter[]::new));
    TaskContext.get().addTaskCompletionListener((TaskCompletionListener) task -> root.close());
  }

  private static ArrowFieldWriter fieldWriter(FieldVector vector) {
    return vector instanceof DecimalVector decimals
            && decimals.getPrecision() <= Decimal.MAX_LONG_DIGITS()
        ? new SmallDecimals(decimals) : ArrowWriter$.MODULE$.createFieldWriter(vector);
  }

  public boolean hasNext() {
    return rows.hasNext();
  }

  public InternalRow next() {
    for (long bytes = 0; bytes < BYTES_MAX && rows.hasNext(); ) {
      UnsafeRow row = unsafe(rows.next());
      writer.write(row);
      bytes += row.getSizeInBytes();
    }
    writer.finish();
    stream.reset();
    try {
      ArrowStreamWriter out = new ArrowStreamWriter(writer.root(), null, stream);
      out.writeBatch();
      out.end();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    writer.reset();
    return new GenericInternalRow(new Object[] {stream.toByteArray()});
  }

  private UnsafeRow unsafe(InternalRow row) {
    if (row instanceof UnsafeRow own) {
      return own;
    }
    if (projection == null) {
      projection = UnsafeProjection.create(schema);
    }
    return projection.apply(row);
  }

  /** Writes decimals of at most 18 digits, which a row has as integers. */
  private static class SmallDecimals extends ArrowFieldWriter {
    private final DecimalVector vector;

    SmallDecimals(DecimalVector vector) {
      this.vector = vector;
    }

    public ValueVector valueVector() {
      return vector;
    }

    public void setNull() {
      vector.setNull(count());
    }

    public void setValue(SpecializedGetters row, int ordinal) {
      vector.setSafe(count(), row.getLong(ordinal));
    }
  }

  /** Makes the evaluators that `python` makes, but of these batches; its own fields are unused. */
  static class Factory extends MapInBatchEvaluatorFactory {
    private final MapInBatchEvaluatorFactory python;
    private final StructType schema;

    /** `python` takes rows of SCHEMA. */
    Factory(MapInBatchEvaluatorFactory python, StructType schema) {
      super(null, null, null, null, 0, 0, null, false, null, null, null, null);
      this.python = python;
      this.schema = schema;
    }

    public PartitionEvaluator<InternalRow, InternalRow> createEvaluator() {
      PartitionEvaluator<InternalRow, InternalRow> evaluator = python.createEvaluator();
      return (part, inputs) -> {
        Iterator<InternalRow> batches = new RowBatches(inputs.head(), schema);
        Seq<Iterator<InternalRow>> input = CollectionConverters.asScala(List.of(batches)).toSeq();
        return SQLConf$.MODULE$.withExistingConf(
            new OneRow(TaskContext.get()), () -> evaluator.eval(part, input));
      };
    }
  }

  /** The settings of a task, but Spark sends each row by itself: it is a batch. */
  private static class OneRow extends ReadOnlySQLConf {
    OneRow(TaskContext context) {
      super(context);
    }

    public int arrowMaxRecordsPerBatch() {
      return 1;
    }
  }
}
