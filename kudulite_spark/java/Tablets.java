package kudulite;

import java.io.ByteArrayOutputStream;
import java.io.Serializable;
import java.math.BigInteger;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
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
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWrite;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
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
 * that have none (a NULL in the key, a key outside every range) are refused wherever they arrive.
 */
class Tablets implements UnboundFunction, ScalarFunction<Integer> {
  static final String OPTION = "repartition";
  private static final String VALUE = "_kudulite_tablet";
  private static final int SPARK_SEED = 42;  // of Spark's shuffles

  private final String partitioning;
  private final StructType columns;
  private final int[] rangeColumns;
  private final Range[] ranges;
  private final int[] values;

  /** A range: its first key, and its tablets, one for each combination of hash buckets. */
  private record Range(byte[] lower, int firstTablet, Dimension[] dimensions)
      implements Serializable {
    static Range of(Metadata given) {
      Metadata[] hash = given.contains("hash") ? given.getMetadataArray("hash") : new Metadata[0];
      return new Range(HexFormat.of().parseHex(given.getString("lower")),
          (int) given.getLong("firstTablet"),
          Arrays.stream(hash).map(Dimension::of).toArray(Dimension[]::new));
    }
  }

  /** A hash dimension of a range. */
  private record Dimension(int[] columns, int seed, int bucketCount) implements Serializable {
    static Dimension of(Metadata given) {
      return new Dimension(numbers(given, "columns"), (int) given.getLong("seed"),
          (int) given.getLong("bucketCount"));
    }
  }

  Tablets(String partitioning) {
    this.partitioning = partitioning;
    Metadata given = Metadata.fromJson(partitioning);
    columns = (StructType) DataType.fromJson(given.getString("schema"));
    rangeColumns = numbers(given, "rangeColumns");
    ranges = Arrays.stream(given.getMetadataArray("ranges")).map(Range::of).toArray(Range[]::new);
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
    boolean hasKey = Arrays.stream(found.columns.fieldNames()).allMatch(
        column -> Arrays.stream(names).filter(column::equalsIgnoreCase).count() == 1);
    return hasKey ? found : null;
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
    return Arrays.stream(columns.fields()).map(StructField::dataType).toArray(DataType[]::new);
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
    int range = ranges.length - 1;
    if (range > 0) {
      byte[] key = encoded(row, rangeColumns);
      while (range > 0 && Arrays.compareUnsigned(key, ranges[range].lower) < 0) {
        range--;
      }
    }
    int tablet = 0;
    for (Dimension dimension : ranges[range].dimensions) {
      byte[] key = encoded(row, dimension.columns);
      int hash = Murmur3_x86_32.hashUnsafeBytes2(
          key, Platform.BYTE_ARRAY_OFFSET, key.length, dimension.seed);
      tablet = tablet * dimension.bucketCount
          + Integer.remainderUnsigned(hash, dimension.bucketCount);
    }
    return values[ranges[range].firstTablet + tablet];
  }

  private byte[] encoded(InternalRow row, int[] places) {
    ByteArrayOutputStream key = new ByteArrayOutputStream(16);
    for (int place : places) {
      DataType type = columns.apply(place).dataType();
      if (type instanceof StringType || type instanceof BinaryType) {
        byte[] text = type instanceof BinaryType
            ? row.getBinary(place) : row.getUTF8String(place).getBytes();
        putText(key, text, place == places[places.length - 1]);
      } else if (type instanceof DecimalType decimal) {
        putDecimal(key, row.getDecimal(place, decimal.precision(), decimal.scale()), decimal);
      } else {
        // Also a date and a timestamp: their number.
        putLong(key, type.defaultSize(), ((Number) row.get(place, type)).longValue());
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

  private static void putDecimal(ByteArrayOutputStream key, Decimal given, DecimalType type) {
    BigInteger number = given.toJavaBigDecimal().unscaledValue();
    if (type.precision() <= Decimal.MAX_LONG_DIGITS()) {
      putLong(key, type.precision() <= Decimal.MAX_INT_DIGITS() ? 4 : 8, number.longValue());
    } else {
      putLong(key, 8, number.shiftRight(64).longValue());
      putLong(key, 8, number.longValue() ^ Long.MIN_VALUE);  // the lower half has no sign
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
    List<Expression> arguments = Arrays.stream(columns.fields()).map(field ->
        ExpressionUtils.expression(rows.col(quoted(field.name())).try_cast(field.dataType())))
        .toList();
    Column tablet =
        ExpressionUtils.column(new ApplyFunctionExpression(this, Scala.seq(arguments)));
    return rows.withColumn(VALUE, tablet)
        .hint("rebalance", values.length, VALUE).drop(VALUE);
  }

  static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }

  /** The builder of a write whose rows Spark sends to the tasks of their tablets. */
  WriteBuilder newWriteBuilder(Load load, LogicalWriteInfo info) {
    return new SentWrite(this, load, info, false);
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

  private static class SentWrite extends PythonWrite implements SupportsTruncate, Sent {
    private final Tablets tablets;
    private final Load load;
    private final LogicalWriteInfo info;

    SentWrite(Tablets tablets, Load load, LogicalWriteInfo info, boolean isTruncate) {
      super(new Planner.Source(load), DefaultSource.NAME, info, isTruncate);
      this.tablets = tablets;
      this.load = load;
      this.info = info;
    }

    public Tablets tablets() {
      return tablets;
    }

    public WriteBuilder truncate() {
      return new SentWrite(tablets, load, info, true);
    }

    public Write build() {
      return this;
    }
  }
}
