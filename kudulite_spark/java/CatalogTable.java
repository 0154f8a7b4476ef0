package kudulite;

import java.util.*;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A table that was named in SQL: the front's table, with TRUNCATE, DELETE, UPDATE and MERGE.
 *
 * Spark computes the changes of a row-level operation from one snapshot, that of the load, and
 * identifies rows by their primary key. The Python source writes them as any other write, and
 * fails it if one of the keys has changed since the snapshot. INSERT is `operation=insert`: a key
 * that is there is an error, unless the statement or the DataFrame names another operation.
 */
class CatalogTable extends DefaultSource.FrontTable
    implements SupportsRowLevelOperations, TruncatableTable {
  static final String READ_AT = "kudulitereadat";
  /** In a column's metadata: the table is loaded to insert rows, see ChangeRule. */
  static final String INSERTED = "kudulite.inserted";

  private final String name;

  CatalogTable(DefaultSource.Load load, String name, boolean isInserted) {
    super(load, isInserted ? noted(load.schema()) : load.schema());
    this.name = name;
  }

  private static StructType noted(StructType schema) {
    StructType found = new StructType();
    for (StructField field : schema.fields()) {
      Metadata metadata = new MetadataBuilder()
          .withMetadata(field.metadata()).putBoolean(INSERTED, true).build();
      found = found.add(field.name(), field.dataType(), field.nullable(), metadata);
    }
    return found;
  }

  public String name() {
    return name;
  }

  public Map<String, String> properties() {
    Metadata given = load.table().getMetadata("properties");
    Map<String, String> found = new HashMap<>();
    for (String property : load.table().getStringArray("propertyNames")) {
      found.put(property, given.getString(property));
    }
    return found;
  }

  public Set<TableCapability> capabilities() {
    Set<TableCapability> all = new HashSet<>(super.capabilities());
    all.add(TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
    all.add(TableCapability.BATCH_WRITE);
    return all;
  }

  private String[] key() {
    return load.table().getStringArray("primaryKey");
  }

  /** The options of the statement, with those of the load, such as the path. */
  private CaseInsensitiveStringMap with(CaseInsensitiveStringMap options) {
    Map<String, String> all = new HashMap<>(load.options.asCaseSensitiveMap());
    all.putAll(options.asCaseSensitiveMap());
    return options.isEmpty() ? load.options : new CaseInsensitiveStringMap(all);
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return super.newScanBuilder(with(options));
  }

  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    CaseInsensitiveStringMap options = info.options();
    Map<String, String> more = new HashMap<>();
    if (!options.containsKey("operation") && !options.containsKey("operationColumn")) {
      more.put("operation", "insert");
    }
    WriteBuilder python = write(info, info.schema(), more);
    Tablets tablets = tablets(info, info.schema());
    return tablets == null ? python : tablets.sent(python);
  }

  private Tablets tablets(LogicalWriteInfo info, StructType rows) {
    return Tablets.of(info.options(), load.options.get("path"), rows.fieldNames());
  }

  private WriteBuilder write(LogicalWriteInfo info, StructType rows, Map<String, String> more) {
    Map<String, String> all = new HashMap<>(with(info.options()).asCaseSensitiveMap());
    all.putAll(more);
    for (String name : new String[] {"applicationId", "applicationVersion"}) {
      String setting = "spark.kudulite." + name;
      if (SQLConf.get().contains(setting)) {
        all.put("kudulite" + name, SQLConf.get().getConfString(setting));
      }
    }
    CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(all);
    return super.newWriteBuilder(new WriteInfo(info.queryId(), rows, options));
  }

  public boolean truncateTable() {
    Catalog.checked(Catalog.ask(load.options.get("path"),
        new MetadataBuilder().putString("call", "truncate")), null, null);
    return true;
  }

  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return new Change(this, info.command());
  }

  record WriteInfo(String queryId, StructType schema, CaseInsensitiveStringMap options)
      implements LogicalWriteInfo {}

  /** One DELETE, UPDATE or MERGE. */
  private static class Change implements SupportsDelta, RowLevelOperationBuilder {
    private final CatalogTable table;
    private final RowLevelOperation.Command command;

    Change(CatalogTable table, RowLevelOperation.Command command) {
      this.table = table;
      this.command = command;
    }

    public RowLevelOperation build() {
      return this;
    }

    public RowLevelOperation.Command command() {
      return command;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return table.newScanBuilder(options);
    }

    public NamedReference[] rowId() {
      String[] key = table.key();
      NamedReference[] found = new NamedReference[key.length];
      for (int i = 0; i < key.length; i++) {
        found[i] = Expressions.column(Tablets.quoted(key[i]));
      }
      return found;
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

    DefaultSource.Load load() {
      return table.load;
    }

    private synchronized BatchWrite python() {
      if (python == null) {
        boolean isMixed = operation.equals("merge");
        python = table.write(info, isMixed ? written.add(OPERATION, "string") : written, Map.of(
            READ_AT, table.load.table().getString("snapshot"),
            isMixed ? "operationColumn" : "operation", isMixed ? OPERATION : operation))
            .build().toBatch();
      }
      return python;
    }

    /** Of a row that MERGE deletes only the key is known. */
    private static StructType nullable(StructType schema) {
      StructType found = new StructType();
      for (StructField field : schema.fields()) {
        found = found.add(field.name(), field.dataType(), true, field.metadata());
      }
      return found;
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
