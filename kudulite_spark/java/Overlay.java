package kudulite;

import com.github.luben.zstd.ZstdInputStream;
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.RowToColumnConverter;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

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
class Overlay {
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
      columns.put(BaseFiles.POSITION, new OnHeapColumnVector(addedCount, DataTypes.LongType));
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
      return copies(reader.getVectorSchemaRoot(), types);
    }
  }

  static WritableColumnVector[] copies(VectorSchemaRoot rows, StructType types) {
    int count = rows.getRowCount();
    ColumnVector[] vectors = Arrays.stream(types.fieldNames())
        .map(name -> PythonBatches.column(rows.getVector(name))).toArray(ColumnVector[]::new);
    WritableColumnVector[] copies = OnHeapColumnVector.allocateColumns(count, types);
    RowToColumnConverter converter = new RowToColumnConverter(types);
    Iterator<InternalRow> left = new ColumnarBatch(vectors, count).rowIterator();
    left.forEachRemaining(row -> converter.convert(row, copies));
    return copies;
  }

  /** Whether the added rows come with this split. */
  boolean isGivenBy(PartitionedFile file) {
    return file.start() == 0 && file.toPath().getName().equals(addedFile);
  }

  /** The added rows, as a batch. */
  synchronized ColumnarBatch rows(StructType required) {
    StructType missing = new StructType(Arrays.stream(required.fields())
        .filter(field -> !columns.containsKey(field.name())).toArray(StructField[]::new));
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
