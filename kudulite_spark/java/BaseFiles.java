package kudulite;

import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * Spark's Parquet for base files of which a snapshot replaces some rows: the format of read_table.
 *
 * The option `overlay` has the positions of the excluded rows, the changed cells of other rows, and
 * the added rows, which are in none of the files. A scan of batches has a column that is NULL in
 * excluded rows, and a filter above the scan removes these: no batch is copied, and Spark generates
 * code for the whole stage. Changed cells are written into the batches. The column of excluded rows
 * has the name of Spark's column of positions. A scan of single rows reads that one, and removes
 * the excluded rows by itself. Spark takes long to fill it, and a scan of batches does without,
 * because Parquet knows the first position of each row group. The added rows follow the first split
 * of one of the files. Spark applies all filters again, also to rows that Parquet could not skip.
 * Files with changed cells are read without the filters on columns that have some: Parquet would
 * skip rows by the values before.
 */
public class BaseFiles extends ParquetFileFormat {
  static final String OVERLAY = "overlay";
  static final String POSITION = "_tmp_metadata_row_index";

  private transient Broadcast<String> overlay;

  /** Fails where Spark's classes are not those that this was made for. */
  static void check() {
    StructType schema = new StructType().add(POSITION, DataTypes.LongType);
    new OverlaidReader.Batches(Iterator.empty(), schema, new int[0], Map.of()).hasNext();
    new ChangedCells(new int[0], null, 0).toString();
    Overlay.copies(VectorSchemaRoot.of(), new StructType());
    new BaseFiles().toString();
  }

  /** A field that Spark keeps to itself. Fails where the class has none of this name. */
  static Field field(Class<?> type, String name) {
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
    StructType read = new StructType(Arrays.stream(required.fields())
        .filter(field -> !isBatched || !field.name().equals(POSITION))
        .toArray(StructField[]::new));
    String text = options.apply(OVERLAY);
    Set<String> changed = Arrays.stream(text.substring(0, text.indexOf(':')).split(","))
        .filter(number -> !number.isEmpty())
        .map(number -> data.apply(Integer.parseInt(number)).name()).collect(Collectors.toSet());
    Seq<Filter> safe = Scala.seq(Scala.list(filters).stream()
        .filter(filter -> Arrays.stream(filter.v2references())
            .noneMatch(path -> changed.contains(path[0]))).toList());
    Function1<PartitionedFile, Iterator<InternalRow>> parquet =
        super.buildReaderWithPartitionValues(spark, data, partition, read, filters, options, conf);
    Function1<PartitionedFile, Iterator<InternalRow>> ofChanged = safe.size() == filters.size()
        ? parquet
        : super.buildReaderWithPartitionValues(spark, data, partition, read, safe, options, conf);
    return new OverlaidReader(
        parquet, ofChanged, broadcast(spark, text), data, required, isBatched);
  }

  /** The text is sent to executors once for all queries of a DataFrame. */
  private synchronized Broadcast<String> broadcast(SparkSession spark, String text) {
    if (overlay == null) {
      overlay = JavaSparkContext.fromSparkContext(spark.sparkContext()).broadcast(text);
    }
    return overlay;
  }
}
