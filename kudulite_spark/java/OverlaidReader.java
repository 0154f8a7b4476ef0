package kudulite;

import java.io.Serializable;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.Map;
import java.util.PrimitiveIterator;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.RecordReaderIterator;
import org.apache.spark.sql.execution.datasources.parquet.SpecificParquetRecordReaderBase;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Function1;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Reads a base file with an overlay: Spark's rows or batches of it, with the changes made in them.
 * Files with changed cells are read with the filters of `ofChanged`.
 */
record OverlaidReader(Function1<PartitionedFile, Iterator<InternalRow>> parquet,
    Function1<PartitionedFile, Iterator<InternalRow>> ofChanged, Broadcast<String> overlay,
    StructType data, StructType required, boolean isBatched)
    implements Function1<PartitionedFile, Iterator<InternalRow>>, Serializable {

  @SuppressWarnings("unchecked")  // to Spark a batch, too, is a row here
  public Iterator<InternalRow> apply(PartitionedFile file) {
    Overlay own = Overlay.of(overlay.value(), data);
    String name = file.toPath().getName();
    int[] excluded = own.excluded.getOrDefault(name, new int[0]);
    Map<String, ChangedCells> cells = own.cells.getOrDefault(name, Map.of());
    Iterator<?> given = (cells.isEmpty() ? parquet : ofChanged).apply(file);
    Iterator<?> found = isBatched ? new Batches(given, required, excluded, cells)
        : new Rows((Iterator<InternalRow>) given, required, excluded, cells);
    return (Iterator<InternalRow>) (own.isGivenBy(file) ? found.concat(() -> added(own)) : found);
  }

  /** The added rows of an overlay, as a batch or row by row. */
  private Iterator<Object> added(Overlay own) {
    ColumnarBatch rows = own.rows(required);
    return isBatched ? Iterator.single(rows)
        : CollectionConverters.asScala(rows.rowIterator())
            .map(UnsafeProjection.create(required)::apply);
  }

  private static ChangedCells[] byColumn(StructType schema, Map<String, ChangedCells> cells) {
    return Arrays.stream(schema.fieldNames()).map(cells::get).toArray(ChangedCells[]::new);
  }

  /** The rows of a file without the excluded ones; they have their positions. */
  static class Rows extends AbstractIterator<InternalRow> {
    private final Iterator<InternalRow> given;
    private final StructType schema;
    private final int[] excluded;
    private final ChangedCells[] cells;  // of each column, or null
    private final int place;  // of the position
    private final UnsafeProjection projection;
    private InternalRow next;

    Rows(Iterator<InternalRow> given, StructType schema, int[] excluded,
        Map<String, ChangedCells> cells) {
      this.given = given;
      this.schema = schema;
      this.excluded = excluded;
      this.cells = byColumn(schema, cells);
      place = schema.fieldIndex(BaseFiles.POSITION);
      projection = cells.isEmpty() ? null : UnsafeProjection.create(schema);
    }

    public boolean hasNext() {
      while (next == null && given.hasNext()) {
        InternalRow row = given.next();
        int position = (int) row.getLong(place);
        if (Arrays.binarySearch(excluded, position) < 0) {
          next = projection == null ? row : changed(row, position);
        }
      }
      return next != null;
    }

    private InternalRow changed(InternalRow row, int position) {
      Object[] values = new Object[cells.length];
      boolean isChanged = false;
      for (int i = 0; i < cells.length; i++) {
        int index = cells[i] == null ? -1 : Arrays.binarySearch(cells[i].positions(), position);
        InternalRow from = index < 0 ? row : cells[i].row(index);
        int column = index < 0 ? i : 0;
        values[i] = from.isNullAt(column) ? null : from.get(column, schema.apply(i).dataType());
        isChanged |= index >= 0;
      }
      return isChanged ? projection.apply(new GenericInternalRow(values)) : row;
    }

    public InternalRow next() {
      hasNext();
      InternalRow row = next;
      next = null;
      return row;
    }
  }

  /** The batches of a file with changed cells, and a column that is NULL in excluded rows. */
  static class Batches extends AbstractIterator<Object> implements InvocationHandler {
    private static final Field READER = BaseFiles.field(RecordReaderIterator.class, "rowReader");
    private static final Field GROUPS =
        BaseFiles.field(SpecificParquetRecordReaderBase.class, "reader");

    private final Iterator<?> given;
    private final StructType schema;
    private final int[] excluded;
    private final ChangedCells[] cells;  // of each column, or null
    private final OnHeapColumnVector kept = new OnHeapColumnVector(4096, DataTypes.LongType);
    private Object groups;
    private long left;  // rows of the row group that is read
    private long position;  // of its first row, or without steps that of the next row
    private PrimitiveIterator.OfLong steps;  // from its first row to each, if Parquet skips pages

    Batches(Iterator<?> given, StructType schema, int[] excluded,
        Map<String, ChangedCells> cells) {
      this.given = given;
      this.schema = schema;
      this.excluded = excluded;
      this.cells = byColumn(schema, cells);
      if (excluded.length > 0 || !cells.isEmpty()) {
        try {
          Object reader = READER.get(given);
          groups = GROUPS.get(reader);
          GROUPS.set(reader, Proxy.newProxyInstance(GROUPS.getType().getClassLoader(),
              new Class<?>[] {GROUPS.getType()}, this));
        } catch (IllegalAccessException error) {
          throw new IllegalStateException(error);
        }
      }
    }

    /** A call of the reader of row groups. */
    public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
      method.setAccessible(true);  // the interface is Spark's own
      Object found;
      try {
        found = method.invoke(groups, arguments);
      } catch (InvocationTargetException error) {
        throw error.getCause();
      }
      if (found instanceof PageReadStore group) {
        if (left != 0) {
          throw new IllegalStateException(left + " rows of a row group were not returned");
        }
        left = group.getRowCount();
        position = group.getRowIndexOffset().get();
        steps = group.getRowIndexes().orElse(null);
      }
      return found;
    }

    public boolean hasNext() {
      return given.hasNext();
    }

    public Object next() {
      ColumnarBatch batch = (ColumnarBatch) given.next();
      int count = batch.numRows();
      int[] positions = steps == null ? null : nextPositions(count);
      ColumnVector[] vectors = new ColumnVector[schema.size()];
      for (int i = 0, read = 0; i < vectors.length; i++) {
        if (schema.apply(i).name().equals(BaseFiles.POSITION)) {
          kept.reset();
          kept.reserve(count);
          find(excluded, positions, count, (row, place) -> kept.putNull(row));
          vectors[i] = kept;
          continue;
        }
        vectors[i] = batch.column(read++);
        if (cells[i] != null) {
          ChangedCells changed = cells[i];
          WritableColumnVector vector = (WritableColumnVector) vectors[i];
          find(changed.positions(), positions, count,
              (row, place) -> changed.put(vector, row, place));
        }
      }
      position += steps == null ? count : 0;
      left -= count;
      return new ColumnarBatch(vectors, count);
    }

    private int[] nextPositions(int count) {
      int[] positions = new int[count];
      Arrays.setAll(positions, row -> (int) (position + steps.nextLong()));
      return positions;
    }

    /** Finds the rows of the batch, at `positions` or one after another, in ascending positions. */
    private void find(int[] ascending, int[] positions, int count, RowFound found) {
      if (positions == null) {
        int first = Arrays.binarySearch(ascending, (int) position);
        for (int place = first < 0 ? -first - 1 : first;
            place < ascending.length && ascending[place] < position + count; place++) {
          found.at((int) (ascending[place] - position), place);
        }
        return;
      }
      for (int row = 0; row < count; row++) {
        int place = Arrays.binarySearch(ascending, positions[row]);
        if (place >= 0) {
          found.at(row, place);
        }
      }
    }

    private interface RowFound {
      void at(int row, int place);
    }
  }
}
