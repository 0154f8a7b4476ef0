package kudulite;

import java.io.ByteArrayOutputStream;
import java.math.BigInteger;
import java.util.Arrays;
import java.util.HexFormat;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.ApplyFunctionExpression;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;

/**
 * The tablets of a table, as a function of rows: where a write sends them, so that the rows of one
 * tablet meet in one task.
 *
 * The name of the function is the table's partitioning in JSON, as kudulite_spark/write_plan.py
 * describes it, and the arguments are the key columns that it uses. The key encoding and the hash
 * are those of kudulite/model/encoded_key.py and kudulite/table/partition.py. Spark sends a row to
 * the shuffle partition hash(value) modulo their number; the value of a tablet is therefore the
 * smallest number that has the tablet's index as this remainder, and no two tablets share a task.
 *
 * A wrong tablet would cost files, not rows: tasks find the tablets of their rows themselves. Rows
 * that have none (a NULL in the key, a key outside every range) are sent anywhere and refused there.
 */
class Tablets implements UnboundFunction, ScalarFunction<Integer> {
  static final String OPTION = "repartition";
  private static final String VALUE = "_kudulite_tablet";
  private static final int SPARK_SEED = 42;  // of Spark's shuffles

  private final String partitioning;
  private final StructType columns;
  private final int[] rangeColumns;
  private final byte[][] lowerBounds;
  private final int[] firstTablets;
  private final Dimension[][] dimensions;
  private final int[] values;

  /** A hash dimension of a range. */
  private static class Dimension implements java.io.Serializable {
    private final int[] columns;
    private final int seed;
    private final int bucketCount;

    Dimension(Metadata given) {
      columns = numbers(given, "columns");
      seed = (int) given.getLong("seed");
      bucketCount = (int) given.getLong("bucketCount");
    }
  }

  Tablets(String partitioning) {
    this.partitioning = partitioning;
    Metadata given = Metadata.fromJson(partitioning);
    columns = (StructType) DataType.fromJson(given.getString("schema"));
    rangeColumns = numbers(given, "rangeColumns");
    Metadata[] ranges = given.getMetadataArray("ranges");
    lowerBounds = new byte[ranges.length][];
    firstTablets = new int[ranges.length];
    dimensions = new Dimension[ranges.length][];
    for (int i = 0; i < ranges.length; i++) {
      lowerBounds[i] = HexFormat.of().parseHex(ranges[i].getString("lower"));
      firstTablets[i] = (int) ranges[i].getLong("firstTablet");
      dimensions[i] = !ranges[i].contains("hash") ? new Dimension[0]
          : Arrays.stream(ranges[i].getMetadataArray("hash"))
              .map(Dimension::new).toArray(Dimension[]::new);
    }
    values = values((int) given.getLong("tabletCount"));
  }

  /**
   * The tablets that a write to a table sends rows of these columns to; null if to none. The
   * write's option says whether it does, or else the setting.
   */
  static Tablets of(CaseInsensitiveStringMap options, String path, String[] names) {
    String name = "spark.kudulite.repartition";
    String setting = SQLConf.get().getConfString(name, "false");
    if (path == null || !DefaultSource.isTrue(options.containsKey(OPTION) ? OPTION : name,
        options.getOrDefault(OPTION, setting))) {
      return null;
    }
    MetadataBuilder question = new MetadataBuilder().putString("call", "partitioning");
    Metadata answer = Catalog.ask(path, question);
    if (!answer.contains("tabletCount")) {
      return null;  // there is no table yet, or none: the write says so
    }
    Tablets found = new Tablets(answer.json());
    for (String column : found.columns.fieldNames()) {
      if (Arrays.stream(names).filter(column::equalsIgnoreCase).count() != 1) {
        return null;
      }
    }
    return found;
  }

  private static int[] numbers(Metadata given, String name) {
    return !given.contains(name) ? new int[0]
        : Arrays.stream(given.getLongArray(name)).mapToInt(number -> (int) number).toArray();
  }

  private static int[] values(int tabletCount) {
    int[] found = new int[tabletCount];
    Arrays.fill(found, -1);
    for (int value = 0, missing = tabletCount; missing > 0; value++) {
      int place = Math.floorMod(Murmur3_x86_32.hashInt(value, SPARK_SEED), tabletCount);
      if (found[place] < 0) {
        found[place] = value;
        missing--;
      }
    }
    return found;
  }

  // The function

  public String name() {
    return "tablet";
  }

  public String description() {
    return name();
  }

  public String canonicalName() {
    return "kudulite.tablet " + partitioning;
  }

  public BoundFunction bind(StructType arguments) {
    return this;
  }

  public DataType[] inputTypes() {
    return Arrays.stream(columns.fields()).map(field -> field.dataType()).toArray(DataType[]::new);
  }

  public DataType resultType() {
    return DataTypes.IntegerType;
  }

  public Integer produceResult(InternalRow row) {
    for (int i = 0; i < columns.size(); i++) {
      if (row.isNullAt(i)) {
        return values[0];
      }
    }
    int range = lowerBounds.length - 1;
    if (range > 0) {
      byte[] key = encoded(row, rangeColumns);
      while (range > 0 && Arrays.compareUnsigned(key, lowerBounds[range]) < 0) {
        range--;
      }
    }
    int tablet = 0;
    for (Dimension dimension : dimensions[range]) {
      byte[] key = encoded(row, dimension.columns);
      int hash = Murmur3_x86_32.hashUnsafeBytes2(
          key, Platform.BYTE_ARRAY_OFFSET, key.length, dimension.seed);
      tablet = tablet * dimension.bucketCount
          + Integer.remainderUnsigned(hash, dimension.bucketCount);
    }
    return values[firstTablets[range] + tablet];
  }

  private byte[] encoded(InternalRow row, int[] places) {
    ByteArrayOutputStream key = new ByteArrayOutputStream(16);
    for (int i = 0; i < places.length; i++) {
      DataType type = columns.apply(places[i]).dataType();
      if (type instanceof StringType || type instanceof BinaryType) {
        byte[] text = type instanceof BinaryType
            ? row.getBinary(places[i]) : row.getUTF8String(places[i]).getBytes();
        putText(key, text, i == places.length - 1);
      } else if (type instanceof DecimalType) {
        DecimalType decimal = (DecimalType) type;
        int precision = decimal.precision();
        putNumber(key, precision <= 9 ? 4 : precision <= 18 ? 8 : 16,
            row.getDecimal(places[i], precision, decimal.scale())
                .toJavaBigDecimal().unscaledValue());
      } else {
        // Also a date and a timestamp: their number.
        long number = ((Number) row.get(places[i], type)).longValue();
        putLong(key, type.defaultSize(), number);
      }
    }
    return key.toByteArray();
  }

  private static void putText(ByteArrayOutputStream key, byte[] text, boolean isLast) {
    if (isLast) {
      key.writeBytes(text);
      return;
    }
    for (byte part : text) {
      key.write(part);
      if (part == 0) {
        key.write(1);
      }
    }
    key.write(0);
    key.write(0);
  }

  private static void putNumber(ByteArrayOutputStream key, int width, BigInteger number) {
    for (int i = width - 1; i >= 8; i--) {
      int part = number.shiftRight(8 * i).byteValue();
      key.write(i == width - 1 ? part ^ 0x80 : part);
    }
    if (width <= 8) {
      putLong(key, width, number.longValue());
    } else {
      putLong(key, 8, number.longValue() ^ Long.MIN_VALUE);
    }
  }

  /** Big-endian, with the sign bit flipped. */
  private static void putLong(ByteArrayOutputStream key, int width, long number) {
    long flipped = number ^ (1L << (8 * width - 1));
    for (int i = width - 1; i >= 0; i--) {
      key.write((int) (flipped >>> (8 * i)));
    }
  }

  // Sending rows

  /** The same rows, sent to the tasks of their tablets. */
  Dataset<Row> sent(Dataset<Row> rows) {
    java.util.List<Expression> arguments = new java.util.ArrayList<>();
    for (StructField field : columns.fields()) {
      Column column = rows.col(quoted(field.name()));
      arguments.add(ExpressionUtils.expression(column.try_cast(field.dataType())));
    }
    Column tablet = ExpressionUtils.column(new ApplyFunctionExpression(
        this, scala.jdk.javaapi.CollectionConverters.asScala(arguments).toSeq()));
    return rows.withColumn(VALUE, tablet)
        .hint("rebalance", values.length, VALUE).drop(VALUE);
  }

  static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }

  /** The builder of a write whose rows Spark sends to the tasks of their tablets. */
  WriteBuilder sent(WriteBuilder python) {
    return new SentWrite(this, python);
  }

  /** A write whose rows Spark sends to the tasks of their tablets, unless these are null. */
  interface Sent extends RequiresDistributionAndOrdering {
    Tablets tablets();

    default Distribution requiredDistribution() {
      return tablets() == null ? Distributions.unspecified()
          : Distributions.clustered(new Transform[] {tablets().transform()});
    }

    /** So that Spark may put small tablets together and divide large ones. */
    default boolean distributionStrictlyRequired() {
      return false;
    }

    default int requiredNumPartitions() {
      return tablets() == null ? 0 : tablets().values.length;
    }

    default SortOrder[] requiredOrdering() {
      return new SortOrder[0];
    }
  }

  private Transform transform() {
    return Expressions.apply(partitioning, Arrays.stream(columns.fieldNames())
        .map(name -> Expressions.column(quoted(name))).toArray(NamedReference[]::new));
  }

  private static class SentWrite implements SupportsTruncate, Sent {
    private final Tablets tablets;
    private WriteBuilder python;
    private Write write;

    SentWrite(Tablets tablets, WriteBuilder python) {
      this.tablets = tablets;
      this.python = python;
    }

    public Tablets tablets() {
      return tablets;
    }

    public WriteBuilder truncate() {
      python = ((SupportsTruncate) python).truncate();
      return this;
    }

    public Write build() {
      write = python.build();
      return this;
    }

    public BatchWrite toBatch() {
      return write.toBatch();
    }

    public StreamingWrite toStreaming() {
      return write.toStreaming();
    }

    public String description() {
      return write.description();
    }

    public CustomMetric[] supportedCustomMetrics() {
      return write.supportedCustomMetrics();
    }
  }
}
