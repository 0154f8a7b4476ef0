package kudulite;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.util.Arrays;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.stream.IntStream;
import net.razorvine.pickle.Pickler;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonWorkerUtils;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap$;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.*;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.execution.python.PythonPlannerRunner;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.CreatableRelationProvider;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * The front: stands before the Python source so that Spark prunes columns, pushes filters and knows
 * sizes. Spark looks for a class of the format's name, `kudulite.DefaultSource`, before it asks for
 * a Python source of that name; so plain format("kudulite") comes here once the jar is loaded.
 *
 * One load() is one Python instance, made once, in which the snapshot is fixed. Stock Spark also
 * keeps one plan per load(), and a filter of one query then serves the next; here every scan plans
 * for itself: its own columns and filters, never anybody else's. All filters are advisory: Spark
 * applies them again. Filters with a date or time that Python does not have are kept back.
 *
 * All steps of planning, and commits, run in one Python process; see Planner.
 *
 * Spark 4.1, 4.2 and 4.3 have the same classes and signatures, but where a comment says otherwise.
 */
public class DefaultSource implements TableProvider, CreatableRelationProvider {
  static final String NAME = "kudulite";
  static final String FRONT = "kudulitefront";
  static final String ROWS = "kudulite.rowCount";
  static final String COUNTED_AT = "kudulite.countedAt";
  static final String COUNT = "kudulitecount";
  static final String TABLE = "kudulite.table";

  private Load load;
  private PythonDataSourceV2 stock;

  /** With the setting spark.kudulite.front=false a load() is the stock one, without the front. */
  private static boolean isOff() {
    String setting = "spark.kudulite.front";
    return !isTrue(setting, SQLConf.get().getConfString(setting, "true"));
  }

  static boolean isTrue(String name, String text) {
    String word = text.strip().toLowerCase(java.util.Locale.ROOT);
    if (!word.equals("true") && !word.equals("false")) {
      throw Catalog.refuse(name + " is '" + text + "', expected true or false");
    }
    return word.equals("true");
  }

  public StructType inferSchema(CaseInsensitiveStringMap options) {
    ChangeRule.install();
    if (isOff()) {
      stock = Load.named(new PythonDataSourceV2());
      return stock.inferSchema(options);
    }
    load = new Load(options, null);
    return load.schema();
  }

  public Transform[] inferPartitioning(CaseInsensitiveStringMap options) {
    return new Transform[0];
  }

  public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
    if (stock != null || isOff()) {
      PythonDataSourceV2 source = stock != null ? stock : Load.named(new PythonDataSourceV2());
      return source.getTable(schema, partitioning, properties);
    }
    CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(properties);
    if (load == null || !load.options.equals(options)) {
      load = new Load(options, schema);
    }
    return new FrontTable(load, schema);
  }

  public boolean supportsExternalMetadata() {
    return true;
  }

  /**
   * A write with repartition=true. Spark knows functions of a catalog only, and this write has
   * none, so its table takes no batches (FrontTable.capabilities), and the rows come here.
   */
  public BaseRelation createRelation(final SQLContext context, SaveMode mode,
      scala.collection.immutable.Map options, Dataset rows) {
    CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(
        scala.jdk.javaapi.CollectionConverters.asJava(options));
    Tablets tablets = Tablets.of(given, given.get("path"), rows.columns());
    Dataset sent = tablets == null ? rows : tablets.sent(rows);
    sent.write().format(NAME).mode(mode).options(given.asCaseSensitiveMap())
        .option(Tablets.OPTION, "false").save();
    final StructType schema = rows.schema();
    return new BaseRelation() {
      public SQLContext sqlContext() {
        return context;
      }

      public StructType schema() {
        return schema;
      }
    };
  }

  /** What one load() has in common: the Python instance, with the snapshot. */
  static class Load {
    final CaseInsensitiveStringMap options;
    final StructType given;
    private final PythonDataSourceV2 source = new FrontSource();
    private final String asks;
    private PythonDataSourceCreationResult created;
    private Metadata table;
    private long rows = -1;
    private String countedAt;
    private long counted = -1;

    Load(CaseInsensitiveStringMap options, StructType given) {
      this(options, given, "true");
    }

    /** For the catalog, which `asks` for more: a note on the table comes with the schema. */
    Load(CaseInsensitiveStringMap options, StructType given, String asks) {
      this.options = options;
      this.given = given;
      this.asks = asks;
    }

    /** The load of a scan: a new one for other options, and for the moment of the scan's query. */
    Load with(CaseInsensitiveStringMap other) {
      boolean isOfQuery = "query".equalsIgnoreCase(other.get("snapshotTimestamp"));
      if (!isOfQuery && other.equals(options)) {
        return this;
      }
      Load found = new Load(other, given, asks);
      found.schema();
      return found;
    }

    /** The note on the table, for the catalog; it comes with the schema. */
    Metadata table() {
      return table;
    }

    static PythonDataSourceV2 named(PythonDataSourceV2 source) {
      source.setShortName(NAME);
      return source;
    }

    /** The instance: the same for all scans of this load(). */
    synchronized PythonDataSourceCreationResult created() {
      if (created == null) {
        created = create(null);
      }
      return created;
    }

    private PythonDataSourceCreationResult create(String count) {
      java.util.Map all = new java.util.HashMap(options.asCaseSensitiveMap());
      all.put(FRONT, asks);
      if (count != null) {
        all.put(COUNT, count);
      }
      scala.Option schema = given == null ? scala.Option.empty() : scala.Option.apply(given);
      return source.source().createDataSourceInPython(
          NAME, new CaseInsensitiveStringMap(all), schema);
    }

    /** The schema, without the notes of the row count that the Python source put into it. */
    StructType schema() {
      StructField[] fields = created().schema().fields();
      StructField[] plain = new StructField[fields.length];
      for (int i = 0; i < fields.length; i++) {
        Metadata metadata = fields[i].metadata();
        if (metadata.contains(TABLE)) {
          table = metadata.getMetadata(TABLE);
          metadata = new MetadataBuilder().withMetadata(metadata).remove(TABLE).build();
        }
        if (metadata.contains(ROWS)) {
          rows = metadata.getLong(ROWS);
          countedAt = metadata.contains(COUNTED_AT) ? metadata.getString(COUNTED_AT) : null;
          metadata = new MetadataBuilder().withMetadata(metadata)
              .remove(ROWS).remove(COUNTED_AT).build();
        }
        plain[i] = new StructField(
            fields[i].name(), fields[i].dataType(), fields[i].nullable(), metadata);
      }
      return new StructType(plain);
    }

    long rows() {
      return rows;
    }

    /** Whether Python can count the rows of a scan of all of them. */
    boolean canCount() {
      return countedAt != null;
    }

    /** The exact number of rows, counted at the first call, in Python, without a job. */
    synchronized long counted() {
      if (counted < 0) {
        counted = create(countedAt).schema().fields()[0].metadata().getLong(ROWS);
      }
      return counted;
    }
  }

  /** The Python source, planned in the one process of the front. */
  static class FrontSource extends PythonDataSourceV2 {
    private Planner planner;

    FrontSource() {
      setShortName(NAME);
    }

    public synchronized UserDefinedPythonDataSource source() {
      if (planner == null) {
        planner = new Planner(super.source().dataSourceCls());
      }
      return planner;
    }
  }

  /** Runs creating the source, planning, pushing filters and committing as a Step each. */
  static class Planner extends UserDefinedPythonDataSource {
    Planner(PythonFunction source) {
      super(source);
    }

    private static scala.collection.immutable.Map scalaMap(CaseInsensitiveStringMap options) {
      return scala.collection.immutable.Map$.MODULE$.from(
          scala.jdk.javaapi.CollectionConverters.asScala(options.asCaseSensitiveMap()));
    }

    public PythonDataSourceCreationResult createDataSourceInPython(
        String name, CaseInsensitiveStringMap options, scala.Option schema) {
      return (PythonDataSourceCreationResult) Step.run(dataSourceCls(),
          new UserDefinedPythonDataSourceRunner(dataSourceCls(), name, schema,
              CaseInsensitiveMap$.MODULE$.apply(scalaMap(options))));
    }

    public scala.Option pushdownFiltersInPython(
        PythonDataSourceCreationResult created, StructType schema, Filter[] filters) {
      PythonFunction source = createPythonFunction(created.dataSource());
      UserDefinedPythonDataSourceFilterPushdownRunner runner =
          new UserDefinedPythonDataSourceFilterPushdownRunner(source, schema,
              scala.jdk.javaapi.CollectionConverters.asScala(Arrays.asList(filters)).toSeq());
      return runner.isAnyFilterSupported()
          ? scala.Option.apply(Step.run(source, runner)) : scala.Option.empty();
    }

    public PythonDataSourceReadInfo createReadInfoInPython(
        PythonDataSourceCreationResult created, StructType schema, boolean isStreaming) {
      PythonFunction source = createPythonFunction(created.dataSource());
      return (PythonDataSourceReadInfo) Step.run(source,
          new UserDefinedPythonDataSourceReadRunner(
              source, UserDefinedPythonDataSource.readInputSchema(), schema, isStreaming));
    }

    public PythonDataSourceWriteInfo createWriteInfoInPython(
        String name, StructType schema, CaseInsensitiveStringMap options, boolean overwrite,
        boolean isStreaming) {
      return (PythonDataSourceWriteInfo) Step.run(dataSourceCls(),
          new UserDefinedPythonDataSourceWriteRunner(
              dataSourceCls(), name, schema, scalaMap(options), overwrite, isStreaming));
    }

    /** Called in tasks, which read or write. The constructor of Spark 4.1's class is another one. */
    public MapInBatchEvaluatorFactory createMapInBatchEvaluatorFactory(byte[] function, String name,
        StructType input, StructType output, scala.collection.immutable.Map metrics,
        scala.Option artifacts, scala.Option session) {
      boolean isRead = input.equals(UserDefinedPythonDataSource.readInputSchema());
      boolean isStock = isRead || org.apache.spark.package$.MODULE$.SPARK_VERSION().startsWith("4.1");
      MapInBatchEvaluatorFactory python = super.createMapInBatchEvaluatorFactory(function, name,
          isStock ? input : RowBatches.SCHEMA, output, metrics, artifacts, session);
      return isStock ? python : new RowBatches.Factory(python, input);
    }

    public void commitWriteInPython(
        byte[] writer, WriterCommitMessage[] messages, boolean isAborted) {
      Step.run(dataSourceCls(), new UserDefinedPythonDataSourceCommitRunner(
          dataSourceCls(), writer, messages, isAborted));
    }
  }

  /**
   * One of Spark's steps, in a worker of the module pyspark_kudulite. Stock Spark has a module for
   * each step, and each has a daemon and a worker of its own, which imports pyspark, pyarrow and
   * kudulite again. The worker of the front is given the name of Spark's module, and calls it. The
   * modules of Spark 4.1 cannot be called so, and each runs by itself.
   */
  static class Step extends PythonPlannerRunner {
    private final PythonPlannerRunner step;

    private Step(PythonFunction function, PythonPlannerRunner step) {
      super(function);
      this.step = step;
    }

    static Object run(PythonFunction function, PythonPlannerRunner step) {
      boolean hasDaemon = step.runInPython$default$1();
      String version = org.apache.spark.package$.MODULE$.SPARK_VERSION();
      boolean isShared = hasDaemon && !version.startsWith("4.1");
      return (isShared ? new Step(function, step) : step).runInPython(hasDaemon);
    }

    public String workerModule() {
      return "pyspark_kudulite";
    }

    /** Not of all versions of Spark; those without it do not call this method. */
    public scala.collection.immutable.Map runnerConf() {
      return step.runnerConf();
    }

    public void writeToPython(DataOutputStream out, Pickler pickler) {
      PythonWorkerUtils.writeUTF(step.workerModule(), out);
      step.writeToPython(out, pickler);
    }

    public Object receiveFromPython(DataInputStream in) {
      return step.receiveFromPython(in);
    }
  }

  /** A source of one scan: Spark keeps a scan's plan in it, and it gets the load's instance. */
  static class ScanSource extends FrontSource {
    private final Load load;

    ScanSource(Load load) {
      this.load = load;
    }

    public PythonDataSourceCreationResult getOrCreateDataSourceInPython(
        String name, CaseInsensitiveStringMap options, scala.Option schema) {
      return load.created();
    }
  }

  static class FrontTable implements Table, SupportsRead, SupportsWrite {
    final Load load;
    private final StructType schema;
    private final PythonTable python;

    FrontTable(Load load, StructType schema) {
      this.load = load;
      this.schema = schema;
      python = new PythonTable(new FrontSource(), NAME, schema);
    }

    public String name() {
      return NAME;
    }

    public StructType schema() {
      return schema;
    }

    /** Spark asks for them when it analyses a write, in whatever session that is. */
    public Set capabilities() {
      ChangeRule.install();
      Set all = new java.util.HashSet(python.capabilities());
      if (isTrue(Tablets.OPTION, load.options.getOrDefault(Tablets.OPTION, "false"))) {
        all.remove(TableCapability.BATCH_WRITE);
      }
      return all;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new FrontScanBuilder(load, schema, options);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return python.newWriteBuilder(info);
    }
  }

  static class FrontScanBuilder implements SupportsPushDownFilters,
      SupportsPushDownRequiredColumns {
    private final Load load;
    private final CaseInsensitiveStringMap options;
    private StructType schema;
    private Filter[] filters = new Filter[0];

    FrontScanBuilder(Load load, StructType schema, CaseInsensitiveStringMap options) {
      // SELECT … WITH (…) gives a scan options of its own; the load's then do not hold for it.
      this.load = load.with(options);
      this.schema = schema;
      this.options = options;
    }

    public Filter[] pushFilters(Filter[] given) {
      if (!"false".equalsIgnoreCase(options.get("pushdown"))) {
        filters = Arrays.stream(given).filter(Moments::areAllOfPython).toArray(Filter[]::new);
      }
      return given;
    }

    public Filter[] pushedFilters() {
      return filters;
    }

    /** Leaves columns out, but none of the fields of a struct: Python has all of them. */
    public void pruneColumns(StructType required) {
      schema = new StructType(Arrays.stream(required.fieldNames())
          .map(name -> schema.apply(name)).toArray(StructField[]::new));
    }

    public Scan build() {
      return new FrontScan(load, schema, options, filters);
    }
  }

  /** One row that is known when a query is planned. */
  record RowScan(StructType readSchema, Object[] row) implements LocalScan {
    public InternalRow[] rows() {
      return new InternalRow[] {new GenericInternalRow(row)};
    }
  }

  /** Python's years are 1 to 9999, in any time zone; one literal outside would fail the query. */
  static class Moments {
    static final long EARLIEST = java.time.LocalDate.of(2, 1, 1).toEpochDay() * 86400L;
    static final long LATEST = java.time.LocalDate.of(9999, 1, 1).toEpochDay() * 86400L;

    static boolean areAllOfPython(Object part) {
      if (part instanceof Object[] parts) {
        return Arrays.stream(parts).allMatch(Moments::areAllOfPython);
      }
      if (part instanceof Filter) {
        scala.Product product = (scala.Product) part;
        return IntStream.range(0, product.productArity())
            .mapToObj(product::productElement).allMatch(Moments::areAllOfPython);
      }
      long second = EARLIEST;
      if (part instanceof java.util.Date) {
        second = Math.floorDiv(((java.util.Date) part).getTime(), 1000L);
      } else if (part instanceof java.time.Instant) {
        second = ((java.time.Instant) part).getEpochSecond();
      } else if (part instanceof java.time.LocalDate) {
        second = ((java.time.LocalDate) part).toEpochDay() * 86400L;
      } else if (part instanceof java.time.LocalDateTime) {
        second = ((java.time.LocalDateTime) part).toLocalDate().toEpochDay() * 86400L;
      }
      return EARLIEST <= second && second < LATEST;
    }
  }

  static class FrontScan implements SupportsReportStatistics {
    final Load load;
    final StructType schema;
    final CaseInsensitiveStringMap options;
    final Filter[] filters;
    private Scan planned;
    private boolean isStream;

    FrontScan(
        Load load, StructType schema, CaseInsensitiveStringMap options, Filter[] filters) {
      this.load = load;
      this.schema = schema;
      this.options = options;
      this.filters = filters;
    }

    /** Spark's own scan of the Python source, planned when it is first run and not to explain. */
    private synchronized Scan planned() {
      if (planned == null) {
        ScanSource source = new ScanSource(load);
        if (filters.length > 0) {
          scala.Option found =
              source.source().pushdownFiltersInPython(load.created(), schema, filters);
          if (found.isDefined()) {
            source.setReadInfo(((PythonFilterPushdownResult) found.get()).readInfo());
          }
        }
        planned = new PythonScanBuilder(source, NAME, schema, options).build();
      }
      return planned;
    }

    public StructType readSchema() {
      return schema;
    }

    public String description() {
      return NAME + " " + options.get("path") + " ReadSchema: " + schema.simpleString()
          + " PushedFilters: " + Arrays.toString(filters);
    }

    public Batch toBatch() {
      return new FrontBatch(this);
    }

    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
      isStream = true;
      return new PythonScanBuilder(new ScanSource(load), NAME, schema, options)
          .build().toMicroBatchStream(checkpointLocation);
    }

    public CustomMetric[] supportedCustomMetrics() {
      return new PythonScanBuilder(new ScanSource(load), NAME, schema, options)
          .build().supportedCustomMetrics();
    }

    /** Batches of columns, but for a stream, which Spark's own reader of Python sources reads. */
    public Scan.ColumnarSupportMode columnarSupportMode() {
      return isStream ? Scan.ColumnarSupportMode.UNSUPPORTED : Scan.ColumnarSupportMode.SUPPORTED;
    }

    /** Whether the rows need not be read, as for count(*): no column is asked for. */
    boolean isCount() {
      return schema.isEmpty() && filters.length == 0 && load.canCount();
    }

    public Statistics estimateStatistics() {
      long rows = load.rows();
      return rows < 0 ? new Size(OptionalLong.empty(), OptionalLong.empty())
          : new Size(OptionalLong.of(rows), OptionalLong.of(rows * (schema.defaultSize() + 8)));
    }

    boolean isSame(FrontScan other) {
      return load == other.load && schema.equals(other.schema)
          && options.equals(other.options) && Arrays.equals(filters, other.filters);
    }
  }

  /** Equal for equal scans of one load(), so that Spark runs what it needs twice only once. */
  static class FrontBatch implements Batch {
    private final FrontScan scan;
    private Batch python;

    FrontBatch(FrontScan scan) {
      this.scan = scan;
    }

    private synchronized Batch python() {
      if (python == null) {
        python = scan.planned().toBatch();
      }
      return python;
    }

    public InputPartition[] planInputPartitions() {
      return scan.isCount() ? EmptyRows.split(scan.load.counted())
          : python().planInputPartitions();
    }

    public PartitionReaderFactory createReaderFactory() {
      return scan.isCount() ? new EmptyRowsFactory()
          : new PythonBatches.Factory(python().createReaderFactory());
    }

    public boolean equals(Object other) {
      return other instanceof FrontBatch && scan.isSame(((FrontBatch) other).scan);
    }

    public int hashCode() {
      return scan.schema.hashCode();
    }
  }

  /** So many rows without columns: one batch, and nothing is read. */
  static class EmptyRows implements InputPartition, PartitionReader {
    static final int ROWS_MAX = 1 << 24;
    private final int rows;
    private boolean isDone;

    EmptyRows(int rows) {
      this.rows = rows;
    }

    static InputPartition[] split(long rows) {
      InputPartition[] parts = new InputPartition[(int) ((rows + ROWS_MAX - 1) / ROWS_MAX)];
      for (int i = 0; i < parts.length; i++) {
        parts[i] = new EmptyRows((int) Math.min(ROWS_MAX, rows - (long) i * ROWS_MAX));
      }
      return parts;
    }

    public boolean next() {
      boolean isFirst = !isDone;
      isDone = true;
      return isFirst;
    }

    public Object get() {
      return new ColumnarBatch(new ColumnVector[0], rows);
    }

    public void close() {}
  }

  static class EmptyRowsFactory implements PartitionReaderFactory {
    public boolean supportColumnarReads(InputPartition part) {
      return true;
    }

    public PartitionReader createColumnarReader(InputPartition part) {
      return new EmptyRows(((EmptyRows) part).rows);
    }

    public PartitionReader createReader(InputPartition part) {
      throw new UnsupportedOperationException("rows without columns come as batches");
    }
  }

  record Size(OptionalLong numRows, OptionalLong sizeInBytes) implements Statistics {}

  /** Fails, at register(), where Spark's classes are not those that this was made for. */
  public static String check() {
    Load load = new Load(CaseInsensitiveStringMap.empty(), null);
    StructType schema = new StructType();
    new PythonScanBuilder(new ScanSource(load), NAME, schema, load.options).build();
    new FrontTable(load, schema).name();
    new EmptyRowsFactory().createColumnarReader(EmptyRows.split(1)[0]);
    Planner.class.getDeclaredMethods();
    Step.class.getDeclaredMethods();
    new Catalog().capabilities();
    CatalogTable.class.getDeclaredMethods();
    ChangeWriter.class.getDeclaredMethods();
    ChangeRule.class.getDeclaredMethods();
    Procedure.class.getDeclaredMethods();
    Tablets.class.getDeclaredMethods();
    PythonBatches.check();
    RowBatches.class.getDeclaredMethods();
    BaseFiles.check();
    OverlaidFiles.class.getDeclaredMethods();
    return NAME;
  }
}
