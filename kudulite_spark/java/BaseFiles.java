package kudulite;

import com.github.luben.zstd.ZstdInputStream;
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.PrimitiveIterator;
import java.util.WeakHashMap;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.RowToColumnConverter;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.RecordReaderIterator;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.datasources.parquet.SpecificParquetRecordReaderBase;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Function1;
import scala.Option;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;

/**
 * Spark's Parquet for base files of which a snapshot replaces some rows: the format of read_table.
 *
 * The option `overlay` has the positions of the excluded rows, and the added rows, which are in none
 * of the files. A scan of batches has a column that is NULL in excluded rows, and a filter above the
 * scan removes these: no batch is copied, and Spark generates code for the whole stage. The column
 * has the name of Spark's column of positions. A scan of single rows reads that one, and removes the
 * excluded rows by itself. Spark takes long to fill it, and a scan of batches does without, because
 * Parquet knows the first position of each row group. The added rows follow the first split of one
 * of the files. Spark applies all filters again, also to rows that Parquet could not skip.
 */
public class BaseFiles extends ParquetFileFormat {
  static final String OVERLAY = "overlay";
  static final String POSITION = "_tmp_metadata_row_index";

  private transient Broadcast<String> overlay;

  /** Fails where Spark's classes are not those that this was made for. */
  static void check() {
    new Batches(Iterator.empty(), new int[0], 0).hasNext();
    new Overlay().copy(VectorSchemaRoot.of(), new StructType());
    new BaseFiles().toString();
  }

  /** A field that Spark keeps to itself. Fails where the class has none of this name. */
  static Field field(Class type, String name) {
    try {
      Field field = type.getDeclaredField(name);
      field.setAccessible(true);
      return field;
    } catch (NoSuchFieldException error) {
      throw new LinkageError(type + " has no field " + name, error);
    }
  }

  public boolean equals(Object other) {
    return other instanceof BaseFiles;  // Spark also compares the options of relations
  }

  public int hashCode() {
    return BaseFiles.class.hashCode();
  }

  public Option<Seq<String>> vectorTypes(StructType required, StructType partition, SQLConf conf) {
    // Without this, generated code would expect vectors off the heap alone.
    return conf.offHeapColumnVectorEnabled() ? Option.empty()
        : super.vectorTypes(required, partition, conf);
  }

  public Function1<PartitionedFile, Iterator<InternalRow>> buildReaderWithPartitionValues(
      SparkSession spark, StructType data, StructType partition, StructType required,
      Seq<Filter> filters, scala.collection.immutable.Map<String, String> options,
      Configuration conf) {
    conf.unset(OVERLAY);  // Spark sends the options to executors again for each query
    boolean isBatched = Boolean.parseBoolean(options.apply("returning_batch"));
    StructType read = required;
    if (isBatched) {
      read = new StructType();
      for (StructField field : required.fields()) {
        read = field.name().equals(POSITION) ? read : read.add(field);
      }
    }
    return new Reader(super.buildReaderWithPartitionValues(
        spark, data, partition, read, filters, options, conf),
        broadcast(spark, options.apply(OVERLAY)), data, required, isBatched);
  }

  /** The text is sent to executors once for all queries of a DataFrame. */
  private synchronized Broadcast<String> broadcast(SparkSession spark, String text) {
    if (overlay == null) {
      overlay = JavaSparkContext.fromSparkContext(spark.sparkContext())
          .broadcast(text);
    }
    return overlay;
  }

  /**
   * Excluded positions and rows, decoded once by an executor that keeps the text; base64 of
   * Zstandard of
   *
   *     overlay := files:u32be file* rows     file := name:utf count:u32be step:u32be*
   *     rows    := name:utf arrow-stream      one batch, and the file that gives it; or "" alone
   */
  static class Overlay {
    private static final Map<String, Overlay> DECODED = new WeakHashMap<>();

    final Map<String, int[]> excluded = new HashMap<>();
    private final Map<String, ColumnVector> columns = new HashMap<>();
    private String rowsFile;
    private int rowCount;

    static Overlay of(String text, StructType schema) {
      synchronized (DECODED) {
        return DECODED.computeIfAbsent(text, t -> {
          byte[] packed = Base64.getDecoder().decode(text);
          try (DataInputStream in =
              new DataInputStream(new ZstdInputStream(new ByteArrayInputStream(packed)))) {
            return new Overlay().read(in, schema);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        });
      }
    }

    private Overlay read(DataInputStream in, StructType schema) throws IOException {
      for (int files = in.readInt(); files > 0; files--) {
        String name = in.readUTF();
        byte[] steps = in.readNBytes(4 * in.readInt());
        int[] positions = new int[steps.length / 4];
        ByteBuffer.wrap(steps).asIntBuffer().get(positions);
        Arrays.parallelPrefix(positions, Integer::sum);
        excluded.put(name, positions);
      }
      rowsFile = in.readUTF();
      if (!rowsFile.isEmpty()) {
        try (RootAllocator memory = new RootAllocator();
            ArrowStreamReader reader = new ArrowStreamReader(in, memory)) {
          reader.loadNextBatch();
          copy(reader.getVectorSchemaRoot(), schema);
        }
      }
      return this;
    }

    /** Copies the rows into vectors of the class that batches of files have. */
    private void copy(VectorSchemaRoot given, StructType schema) {
      rowCount = given.getRowCount();
      StructType types = new StructType();
      ColumnVector[] vectors = new ColumnVector[given.getFieldVectors().size()];
      for (int i = 0; i < vectors.length; i++) {
        types = types.add(schema.apply(given.getVector(i).getName()));
        vectors[i] = PythonBatches.column(given.getVector(i));
      }
      WritableColumnVector[] copies = OnHeapColumnVector.allocateColumns(rowCount, types);
      RowToColumnConverter converter = new RowToColumnConverter(types);
      for (java.util.Iterator<InternalRow> rows =
          new ColumnarBatch(vectors, rowCount).rowIterator(); rows.hasNext(); ) {
        converter.convert(rows.next(), copies);
      }
      for (int i = 0; i < vectors.length; i++) {
        columns.put(types.apply(i).name(), copies[i]);
      }
      columns.put(POSITION, new OnHeapColumnVector(rowCount, DataTypes.LongType));
    }

    /** The rows that come with the first split of a file, or null. */
    ColumnarBatch rows(PartitionedFile file, StructType required) {
      if (file.start() != 0 || !file.toPath().getName().equals(rowsFile)) {
        return null;
      }
      ColumnVector[] vectors = new ColumnVector[required.size()];
      for (int i = 0; i < vectors.length; i++) {
        vectors[i] = columns.get(required.apply(i).name());
      }
      return new ColumnarBatch(vectors, rowCount);
    }
  }

  static class Reader extends AbstractFunction1<PartitionedFile, Iterator<InternalRow>>
      implements Serializable {
    private final Function1<PartitionedFile, Iterator<InternalRow>> parquet;
    private final Broadcast<String> overlay;
    private final StructType data;
    private final StructType required;
    private final boolean isBatched;

    Reader(Function1<PartitionedFile, Iterator<InternalRow>> parquet, Broadcast<String> overlay,
        StructType data, StructType required, boolean isBatched) {
      this.parquet = parquet;
      this.overlay = overlay;
      this.data = data;
      this.required = required;
      this.isBatched = isBatched;
    }

    public Iterator apply(PartitionedFile file) {
      Overlay own = Overlay.of(overlay.value(), data);
      int[] excluded = own.excluded.getOrDefault(file.toPath().getName(), new int[0]);
      int position = required.fieldIndex(POSITION);
      Iterator given = parquet.apply(file);
      Iterator found = isBatched ? new Batches(given, excluded, position)
          : new Rows(given, excluded, position);
      ColumnarBatch rows = own.rows(file, required);
      return rows == null ? found : found.concat(new More(rows, isBatched ? null : required));
    }
  }

  /** The rows of an overlay: the batch, or with a schema its rows. */
  static class More extends AbstractFunction0<Iterator> {
    private final ColumnarBatch rows;
    private final StructType schema;

    More(ColumnarBatch rows, StructType schema) {
      this.rows = rows;
      this.schema = schema;
    }

    public Iterator apply() {
      return schema == null ? Iterator.single(rows)
          : CollectionConverters.asScala(rows.rowIterator()).map(UnsafeProjection.create(schema));
    }
  }

  /** The rows of a file without the excluded ones; they have their positions. */
  static class Rows extends AbstractIterator<InternalRow> {
    private final Iterator<InternalRow> given;
    private final int[] excluded;
    private final int position;
    private InternalRow next;

    Rows(Iterator<InternalRow> given, int[] excluded, int position) {
      this.given = given;
      this.excluded = excluded;
      this.position = position;
    }

    public boolean hasNext() {
      while (next == null && given.hasNext()) {
        InternalRow row = given.next();
        if (Arrays.binarySearch(excluded, (int) row.getLong(position)) < 0) {
          next = row;
        }
      }
      return next != null;
    }

    public InternalRow next() {
      hasNext();
      InternalRow row = next;
      next = null;
      return row;
    }
  }

  /** The batches of a file, with a column that is NULL in excluded rows. */
  static class Batches extends AbstractIterator<Object> implements InvocationHandler {
    private static final Field READER = field(RecordReaderIterator.class, "rowReader");
    private static final Field GROUPS = field(SpecificParquetRecordReaderBase.class, "reader");

    private final Iterator<Object> given;
    private final int[] excluded;
    private final int place;  // of the column
    private final OnHeapColumnVector column = new OnHeapColumnVector(4096, DataTypes.LongType);
    private Object groups;
    private long left;  // rows of the row group that is read
    private long position;  // of its first row, or without steps that of the next row
    private PrimitiveIterator.OfLong steps;  // from its first row to each, if Parquet skips pages

    Batches(Iterator<Object> given, int[] excluded, int place) {
      this.given = given;
      this.excluded = excluded;
      this.place = place;
      if (excluded.length > 0) {
        try {
          Object reader = READER.get(given);
          groups = GROUPS.get(reader);
          GROUPS.set(reader, Proxy.newProxyInstance(GROUPS.getType().getClassLoader(),
              new Class[] {GROUPS.getType()}, this));
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
      if (found instanceof PageReadStore) {
        PageReadStore group = (PageReadStore) found;
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
      column.reset();
      column.reserve(count);
      if (steps == null) {
        for (int i = atOrAfter(position); i < excluded.length && excluded[i] < position + count; i++) {
          column.putNull((int) (excluded[i] - position));
        }
        position += count;
      } else {
        for (int row = 0; row < count; row++) {
          if (Arrays.binarySearch(excluded, (int) (position + steps.nextLong())) >= 0) {
            column.putNull(row);
          }
        }
      }
      left -= count;
      ColumnVector[] vectors = new ColumnVector[batch.numCols() + 1];
      for (int i = 0; i < vectors.length; i++) {
        vectors[i] = i == place ? column : batch.column(i < place ? i : i - 1);
      }
      return new ColumnarBatch(vectors, count);
    }

    private int atOrAfter(long position) {
      int found = Arrays.binarySearch(excluded, (int) position);
      return found < 0 ? -found - 1 : found;
    }
  }
}
