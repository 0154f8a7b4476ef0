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
import java.util.HashSet;
import java.util.Map;
import java.util.PrimitiveIterator;
import java.util.Set;
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
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
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
import scala.runtime.AbstractFunction1;

/**
 * Spark's Parquet for base files of which a snapshot replaces some rows: the format of read_table.
 *
 * The option `overlay` has the positions of the excluded rows, the changed cells of other rows, and
 * the added rows, which are in none of the files. A scan of batches has a column that is NULL in
 * excluded rows, and a filter above the scan removes these: no batch is copied, and Spark generates
 * code for the whole stage. Changed cells are written into the batches. The column of excluded rows
 * has the name of Spark's column of positions. A scan of single rows reads that one, and removes the
 * excluded rows by itself. Spark takes long to fill it, and a scan of batches does without, because
 * Parquet knows the first position of each row group. The added rows follow the first split of one
 * of the files. Spark applies all filters again, also to rows that Parquet could not skip. Files with
 * changed cells are read without the filters on columns that have some: Parquet would skip rows by
 * the values before.
 */
public class BaseFiles extends ParquetFileFormat {
  static final String OVERLAY = "overlay";
  static final String POSITION = "_tmp_metadata_row_index";

  private transient Broadcast<String> overlay;

  /** Fails where Spark's classes are not those that this was made for. */
  static void check() {
    StructType schema = new StructType().add(POSITION, DataTypes.LongType);
    new Batches(Iterator.empty(), schema, new int[0], Map.of()).hasNext();
    new ChangedCells(new int[0], null, 0).toString();
    Overlay.copies(VectorSchemaRoot.of(), new StructType());
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
    String text = options.apply(OVERLAY);
    Set<String> changed = new HashSet<>();
    for (String number : text.substring(0, text.indexOf(':')).split(",", -1)) {
      if (!number.isEmpty()) {
        changed.add(data.apply(Integer.parseInt(number)).name());
      }
    }
    Seq<Filter> safe = (Seq<Filter>) filters.filter(filter ->
        Arrays.stream(filter.v2references()).noneMatch(path -> changed.contains(path[0])));
    Function1<PartitionedFile, Iterator<InternalRow>> parquet =
        super.buildReaderWithPartitionValues(spark, data, partition, read, filters, options, conf);
    Function1<PartitionedFile, Iterator<InternalRow>> ofChanged = safe.size() == filters.size()
        ? parquet
        : super.buildReaderWithPartitionValues(spark, data, partition, read, safe, options, conf);
    return new Reader(parquet, ofChanged, broadcast(spark, text), data, required, isBatched);
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
   * Excluded positions, changed cells and rows, decoded once by an executor that keeps the text.
   *
   *     text      := numbers ":" base64(zstd(overlay))   of the columns with changed cells
   *     overlay   := files:u32be file* columns:u32be cells* added
   *     file      := name:utf positions                  of the excluded rows
   *     cells     := name:utf positions* rows            for each `file`; the values of all
   *     positions := count:u32be step:u32be*
   *     added     := name:utf count:u32be rows           of the file that gives them; or "" alone
   *     rows      := size:u32be arrow-stream             of one batch
   */
  static class Overlay {
    private static final Map<String, Overlay> DECODED = new WeakHashMap<>();

    final Map<String, int[]> excluded = new HashMap<>();
    final Map<String, Map<String, ChangedCells>> cells = new HashMap<>();  // by file and column
    private final Map<String, ColumnVector> columns = new HashMap<>();  // of the added rows
    private byte[] added;  // these rows; their columns are copied when a query needs them
    private int addedCount;
    private String addedFile;

    static Overlay of(String text, StructType schema) {
      synchronized (DECODED) {
        return DECODED.computeIfAbsent(text, t -> {
          byte[] packed = Base64.getDecoder().decode(text.substring(text.indexOf(':') + 1));
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
      String[] names = new String[in.readInt()];
      for (int i = 0; i < names.length; i++) {
        names[i] = in.readUTF();
        excluded.put(names[i], positions(in));
      }
      for (int left = in.readInt(); left > 0; left--) {
        String column = in.readUTF();
        int[][] positions = new int[names.length][];
        for (int i = 0; i < names.length; i++) {
          positions[i] = positions(in);
        }
        StructType type = new StructType().add(schema.apply(column));
        WritableColumnVector values = copies(in.readNBytes(in.readInt()), type)[0];
        for (int i = 0, first = 0; i < names.length; first += positions[i++].length) {
          if (positions[i].length > 0) {
            cells.computeIfAbsent(names[i], name -> new HashMap<>())
                .put(column, new ChangedCells(positions[i], values, first));
          }
        }
      }
      addedFile = in.readUTF();
      if (!addedFile.isEmpty()) {
        addedCount = in.readInt();
        added = in.readNBytes(in.readInt());
      }
      return this;
    }

    private static int[] positions(DataInputStream in) throws IOException {
      byte[] steps = in.readNBytes(4 * in.readInt());
      int[] positions = new int[steps.length / 4];
      ByteBuffer.wrap(steps).asIntBuffer().get(positions);
      Arrays.parallelPrefix(positions, Integer::sum);
      return positions;
    }

    /** Copies columns of rows into vectors of the class that batches of files have. */
    private static WritableColumnVector[] copies(byte[] stream, StructType types)
        throws IOException {
      try (RootAllocator memory = new RootAllocator();
          ArrowStreamReader reader =
              new ArrowStreamReader(new ByteArrayInputStream(stream), memory)) {
        reader.loadNextBatch();
        VectorSchemaRoot rows = reader.getVectorSchemaRoot();
        return copies(rows, types);
      }
    }

    private static WritableColumnVector[] copies(VectorSchemaRoot rows, StructType types) {
      int count = rows.getRowCount();
      ColumnVector[] vectors = Arrays.stream(types.fieldNames())
          .map(name -> PythonBatches.column(rows.getVector(name))).toArray(ColumnVector[]::new);
      WritableColumnVector[] copies = OnHeapColumnVector.allocateColumns(count, types);
      RowToColumnConverter converter = new RowToColumnConverter(types);
      for (java.util.Iterator<InternalRow> left = new ColumnarBatch(vectors, count).rowIterator();
          left.hasNext(); ) {
        converter.convert(left.next(), copies);
      }
      return copies;
    }

    /** Whether the added rows come with this split. */
    boolean isGivenBy(PartitionedFile file) {
      return file.start() == 0 && file.toPath().getName().equals(addedFile);
    }

    /** The added rows, as a batch. */
    synchronized ColumnarBatch rows(StructType required) {
      StructType missing = new StructType();
      for (StructField field : required.fields()) {
        if (field.name().equals(POSITION)) {
          columns.put(POSITION, new OnHeapColumnVector(addedCount, DataTypes.LongType));
        } else if (!columns.containsKey(field.name())) {
          missing = missing.add(field);
        }
      }
      try {
        WritableColumnVector[] copies = copies(added, missing);
        for (int i = 0; i < copies.length; i++) {
          columns.put(missing.apply(i).name(), copies[i]);
        }
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
      return new ColumnarBatch(Arrays.stream(required.fieldNames()).map(columns::get)
          .toArray(ColumnVector[]::new), addedCount);
    }
  }

  static class Reader extends AbstractFunction1<PartitionedFile, Iterator<InternalRow>>
      implements Serializable {
    private final Function1<PartitionedFile, Iterator<InternalRow>> parquet;
    private final Function1<PartitionedFile, Iterator<InternalRow>> ofChanged;
    private final Broadcast<String> overlay;
    private final StructType data;
    private final StructType required;
    private final boolean isBatched;

    Reader(Function1<PartitionedFile, Iterator<InternalRow>> parquet,
        Function1<PartitionedFile, Iterator<InternalRow>> ofChanged, Broadcast<String> overlay,
        StructType data, StructType required, boolean isBatched) {
      this.parquet = parquet;
      this.ofChanged = ofChanged;
      this.overlay = overlay;
      this.data = data;
      this.required = required;
      this.isBatched = isBatched;
    }

    public Iterator apply(PartitionedFile file) {
      Overlay own = Overlay.of(overlay.value(), data);
      String name = file.toPath().getName();
      int[] excluded = own.excluded.getOrDefault(name, new int[0]);
      Map<String, ChangedCells> cells = own.cells.getOrDefault(name, Map.of());
      Iterator given = (cells.isEmpty() ? parquet : ofChanged).apply(file);
      Iterator found = isBatched ? new Batches(given, required, excluded, cells)
          : new Rows(given, required, excluded, cells);
      return own.isGivenBy(file) ? found.concat(() -> added(own)) : found;
    }

    /** The added rows of an overlay, as a batch or row by row. */
    private Iterator added(Overlay own) {
      ColumnarBatch rows = own.rows(required);
      return isBatched ? Iterator.single(rows)
          : CollectionConverters.asScala(rows.rowIterator())
              .map(UnsafeProjection.create(required));
    }
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
      place = schema.fieldIndex(POSITION);
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
    private static final Field READER = field(RecordReaderIterator.class, "rowReader");
    private static final Field GROUPS = field(SpecificParquetRecordReaderBase.class, "reader");

    private final Iterator<Object> given;
    private final StructType schema;
    private final int[] excluded;
    private final ChangedCells[] cells;  // of each column, or null
    private final OnHeapColumnVector kept = new OnHeapColumnVector(4096, DataTypes.LongType);
    private Object groups;
    private long left;  // rows of the row group that is read
    private long position;  // of its first row, or without steps that of the next row
    private PrimitiveIterator.OfLong steps;  // from its first row to each, if Parquet skips pages

    Batches(Iterator<Object> given, StructType schema, int[] excluded,
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
      int[] positions = steps == null ? null : nextPositions(count);
      ColumnVector[] vectors = new ColumnVector[schema.size()];
      for (int i = 0, read = 0; i < vectors.length; i++) {
        if (schema.apply(i).name().equals(POSITION)) {
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
          find(changed.positions(), positions, count, (row, place) -> changed.put(vector, row, place));
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
