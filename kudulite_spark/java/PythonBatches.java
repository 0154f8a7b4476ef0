package kudulite;

import java.io.IOException;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.DecimalVector;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The Arrow batches that Python sends, for Spark to read as columns. Spark's own reader of a Python
 * source copies each row of them, with all columns, before the query sees it.
 *
 * That reader is `batches.flatMap(rows).map(copy)`, and does nothing before it is asked for a row:
 * this one asks the batches below it instead. Each has one column, a struct of the table's columns.
 * As with all batches of Spark, the values of a batch are gone when the next one is asked for.
 */
class PythonBatches implements PartitionReader<ColumnarBatch> {
  private static final String READER =
      "org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory$$anon$1";

  private final PartitionReader<?> rows;
  private final Iterator<?> batches;

  PythonBatches(PartitionReader<?> rows) {
    this.rows = rows;
    batches = below(below((Iterator<?>) value(rows, "outputIter")));
  }

  /** Fails where Spark's classes are not those that this was made for. */
  static void check() {
    try {
      BaseFiles.field(Class.forName(READER), "outputIter");
    } catch (ClassNotFoundException error) {
      throw new LinkageError("no class " + READER, error);
    }
    Iterator<Object> batches = CollectionConverters.asScala(List.<Object>of().iterator());
    if (below(below(batches.<Object>flatMap(batch -> null).map(row -> row))) != batches) {
      throw new LinkageError("iterators of Scala do not have the ones below them");
    }
  }

  private static Iterator<?> below(Iterator<?> given) {
    return (Iterator<?>) value(given, "$outer");
  }

  private static Object value(Object owner, String name) {
    try {
      return BaseFiles.field(owner.getClass(), name).get(owner);
    } catch (IllegalAccessException error) {
      throw new IllegalStateException(error);
    }
  }

  public boolean next() {
    return batches.hasNext();
  }

  public ColumnarBatch get() {
    ColumnarBatch batch = (ColumnarBatch) batches.next();
    ArrowColumnVector struct = (ArrowColumnVector) batch.column(0);
    return new ColumnarBatch(new Cells(struct.getValueVector()).parts, batch.numRows());
  }

  public CustomTaskMetric[] currentMetricsValues() {
    return rows.currentMetricsValues();
  }

  public void close() throws IOException {
    rows.close();
  }

  /** A column of Arrow for Spark to read. */
  static ArrowColumnVector column(ValueVector vector) {
    boolean isSmall = vector instanceof DecimalVector decimal
        && decimal.getPrecision() <= Decimal.MAX_LONG_DIGITS();
    return isSmall ? new SmallDecimals(vector) : new Cells(vector);
  }

  /** Spark closes the columns of a batch after it, and a closed struct takes no other batch. */
  private static class Cells extends ArrowColumnVector {
    private final ArrowColumnVector[] parts;  // the fields of a struct, or the elements of arrays

    Cells(ValueVector vector) {
      super(vector);
      parts = vector instanceof ListVector list
          ? new ArrowColumnVector[] {new Elements(list.getDataVector())}
          : vector instanceof StructVector struct ? struct.getChildrenFromFields().stream()
              .map(PythonBatches::column).toArray(ArrowColumnVector[]::new) : null;
    }

    public void close() {}

    public ArrowColumnVector getChild(int field) {
      return parts[field];
    }

    public ColumnarArray getArray(int row) {
      ListVector list = (ListVector) getValueVector();
      int start = list.getElementStartIndex(row);
      return isNullAt(row) ? null
          : new ColumnarArray(parts[0], start, list.getElementEndIndex(row) - start);
    }
  }

  /** Spark copies an array of numbers with a value for each NULL, which Arrow does not have. */
  private static class Elements extends ArrowColumnVector {
    Elements(ValueVector vector) {
      super(vector);
    }

    public boolean getBoolean(int row) {
      return !isNullAt(row) && super.getBoolean(row);
    }

    public byte getByte(int row) {
      return isNullAt(row) ? 0 : super.getByte(row);
    }

    public short getShort(int row) {
      return isNullAt(row) ? 0 : super.getShort(row);
    }

    public int getInt(int row) {
      return isNullAt(row) ? 0 : super.getInt(row);
    }

    public long getLong(int row) {
      return isNullAt(row) ? 0 : super.getLong(row);
    }

    public float getFloat(int row) {
      return isNullAt(row) ? 0 : super.getFloat(row);
    }

    public double getDouble(int row) {
      return isNullAt(row) ? 0 : super.getDouble(row);
    }
  }

  /** Decimals of at most 18 digits, without the BigDecimal that Spark's class makes of each. */
  private static class SmallDecimals extends Cells {
    private final ArrowBuf values;

    SmallDecimals(ValueVector vector) {
      super(vector);
      values = vector.getDataBuffer();
    }

    public Decimal getDecimal(int row, int precision, int scale) {
      long place = (long) row * DecimalVector.TYPE_WIDTH;
      return isNullAt(row) ? null : Decimal.createUnsafe(values.getLong(place), precision, scale);
    }
  }

  /** Makes the readers of batches from those of rows; rows that are only counted need none. */
  record Factory(PartitionReaderFactory python) implements PartitionReaderFactory {
    public boolean supportColumnarReads(InputPartition part) {
      return true;
    }

    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition part) {
      return part instanceof FrontScan.EmptyRows rows ? rows.reader()
          : new PythonBatches(python.createReader(part));
    }

    public PartitionReader<InternalRow> createReader(InputPartition part) {
      throw new UnsupportedOperationException("a scan reads batches");
    }
  }
}
