package kudulite;

import java.util.*;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A table that was named in SQL: the front's table, with TRUNCATE, DELETE, UPDATE and MERGE.
 *
 * Spark computes the changes of a row-level operation from one snapshot, that of the load, and
 * identifies rows by their primary key. The Python source writes them as any other write, and
 * fails it if one of the keys has changed since the snapshot. INSERT is `operation=insert`: a key
 * that is there is an error, unless the statement or the DataFrame names another operation.
 */
class CatalogTable extends FrontTable
    implements SupportsRowLevelOperations, SupportsPartitionManagement, TruncatableTable {
  static final String READ_AT = "kudulitereadat";
  /** In a column's metadata: the table is loaded to insert rows, see ChangeRule. */
  static final String INSERTED = "kudulite.inserted";

  private final String name;

  CatalogTable(Load load, String name, boolean isInserted) {
    super(load, isInserted ? noted(load.schema()) : load.schema());
    this.name = name;
  }

  private static StructType noted(StructType schema) {
    return new StructType(Arrays.stream(schema.fields()).map(field -> new StructField(
        field.name(), field.dataType(), field.nullable(),
        new MetadataBuilder().withMetadata(field.metadata()).putBoolean(INSERTED, true).build()))
        .toArray(StructField[]::new));
  }

  public String name() {
    return name;
  }

  public Map<String, String> properties() {
    return Catalog.texts(
        load.note().getMetadata("properties"), load.note().getStringArray("propertyNames"));
  }

  public Set<TableCapability> capabilities() {
    Set<TableCapability> all = new HashSet<>(super.capabilities());
    all.add(TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
    all.add(TableCapability.BATCH_WRITE);
    return all;
  }

  /** The options of the statement, with those of the load, such as the path. */
  private CaseInsensitiveStringMap with(CaseInsensitiveStringMap options) {
    return Load.with(load.options, options.asCaseSensitiveMap());
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return super.newScanBuilder(with(options));
  }

  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    CaseInsensitiveStringMap options = info.options();
    boolean isNamed = options.containsKey("operation") || options.containsKey("operationColumn");
    return write(info, info.schema(), isNamed ? Map.of() : Map.of("operation", "insert"),
        tablets(info, info.schema()));
  }

  private Tablets tablets(LogicalWriteInfo info, StructType rows) {
    return Tablets.of(info.options(), load.options.get("path"), rows.fieldNames());
  }

  /** A write of `rows` with `more` options, and with those of the load and of the session. */
  private WriteBuilder write(
      LogicalWriteInfo info, StructType rows, Map<String, String> more, Tablets tablets) {
    Map<String, String> all = new HashMap<>(more);
    for (String name : new String[] {"applicationId", "applicationVersion"}) {
      String setting = "spark.kudulite." + name;
      if (SQLConf.get().contains(setting)) {
        all.put("kudulite" + name, SQLConf.get().getConfString(setting));
      }
    }
    WriteInfo own = new WriteInfo(info.queryId(), rows, Load.with(with(info.options()), all));
    return tablets == null ? super.newWriteBuilder(own) : tablets.newWriteBuilder(load, own);
  }

  public boolean truncateTable() {
    Catalog.checked(Catalog.ask(load.options.get("path"),
        new MetadataBuilder().putString("call", "truncate")), null, null);
    return true;
  }

  // SHOW PARTITIONS: all columns are texts. Spark asks for partitions nowhere else.

  public StructType partitionSchema() {
    String[] names = load.note().contains("partitionNames")
        ? load.note().getStringArray("partitionNames") : new String[0];
    StructType schema = new StructType();
    for (String name : names) {
      schema = schema.add(name, DataTypes.StringType);
    }
    return schema;
  }

  public InternalRow[] listPartitionIdentifiers(String[] names, InternalRow values) {
    StructType schema = partitionSchema();
    int width = schema.length();
    String[] all = Catalog.checked(Catalog.ask(load.options.get("path"),
        new MetadataBuilder().putString("call", "partitions")), null, null)
        .getStringArray("values");
    return IntStream.range(0, all.length / width)
        .mapToObj(i -> new GenericInternalRow(IntStream.range(i * width, (i + 1) * width)
            .mapToObj(j -> (Object) UTF8String.fromString(all[j])).toArray()))
        .filter(row -> IntStream.range(0, names.length).allMatch(i ->
            row.getUTF8String(schema.fieldIndex(names[i])).equals(values.getUTF8String(i))))
        .toArray(InternalRow[]::new);
  }

  public Map<String, String> loadPartitionMetadata(InternalRow partition) {
    return Map.of();
  }

  public void createPartition(InternalRow partition, Map<String, String> properties) {
    throw noPartition();
  }

  public boolean dropPartition(InternalRow partition) {
    throw noPartition();
  }

  public void replacePartitionMetadata(InternalRow partition, Map<String, String> properties) {
    throw noPartition();
  }

  private RuntimeException noPartition() {
    return Catalog.refuse("table " + name + ": ALTER TABLE changes no partitions; CALL "
        + "add_range_partition or drop_range_partition of the catalog");
  }

  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return new Change(this, info.command());
  }

  record WriteInfo(String queryId, StructType schema, CaseInsensitiveStringMap options)
      implements LogicalWriteInfo {}

  /** One DELETE, UPDATE or MERGE. */
  private record Change(CatalogTable table, RowLevelOperation.Command command)
      implements SupportsDelta, RowLevelOperationBuilder {
    public RowLevelOperation build() {
      return this;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return table.newScanBuilder(options);
    }

    public NamedReference[] rowId() {
      return Arrays.stream(table.load.note().getStringArray("primaryKey"))
          .map(column -> Expressions.column(Tablets.quoted(column))).toArray(NamedReference[]::new);
    }

    public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new ChangeWrite(table, command, info);
    }
  }

  /** The Python source's write of the changes; in its tasks a ChangeWriter hands them over. */
  static class ChangeWrite
      implements DeltaWriteBuilder, DeltaWrite, DeltaBatchWrite, Tablets.Sent {
    private static final String OPERATION = "_kudulite_operation";

    final StructType ids;
    final StructType rows;
    private final CatalogTable table;
    private final LogicalWriteInfo info;
    private final Tablets tablets;
    private String operation;
    private StructType written;
    private BatchWrite python;

    ChangeWrite(CatalogTable table, RowLevelOperation.Command command, LogicalWriteInfo info) {
      this.table = table;
      this.info = info;
      ids = info.rowIdSchema().get();
      rows = command == RowLevelOperation.Command.DELETE ? ids : nullable(info.schema());
      boolean isMerge = command == RowLevelOperation.Command.MERGE;
      tablets = isMerge ? table.tablets(info, rows) : null;  // others have rows of one tablet
      become(command.name().toLowerCase(java.util.Locale.ROOT), rows);
    }

    /** Makes all changes one `operation` of some columns; of a MERGE each has one of its own. */
    void become(String operation, StructType written) {
      this.operation = operation;
      this.written = written;
    }

    boolean isUpdate() {
      return operation.equals("update");
    }

    Load load() {
      return table.load;
    }

    private synchronized BatchWrite python() {
      if (python == null) {
        boolean isMixed = operation.equals("merge");
        StructType sent = isMixed ? written.add(OPERATION, "string") : written;
        python = table.write(info, sent, Map.of(
            READ_AT, table.load.note().getString("snapshot"),
            isMixed ? "operationColumn" : "operation", isMixed ? OPERATION : operation), null)
            .build().toBatch();
      }
      return python;
    }

    /** Of a row that MERGE deletes only the key is known. */
    private static StructType nullable(StructType schema) {
      return new StructType(Arrays.stream(schema.fields()).map(field -> new StructField(
          field.name(), field.dataType(), true, field.metadata())).toArray(StructField[]::new));
    }

    public Tablets tablets() {
      return tablets;
    }

    public DeltaWrite build() {
      return this;
    }

    public DeltaBatchWrite toBatch() {
      return this;
    }

    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new ChangeWriter.Factory(python().createBatchWriterFactory(info), ids, rows, written,
          operation.equals("merge"));
    }

    public boolean useCommitCoordinator() {
      return python().useCommitCoordinator();
    }

    public void commit(WriterCommitMessage[] messages) {
      python().commit(messages);
    }

    public void abort(WriterCommitMessage[] messages) {
      python().abort(messages);
    }
  }
}
