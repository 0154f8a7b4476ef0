package kudulite;

import java.time.ZoneId;
import java.util.*;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.analysis.*;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.catalog.constraints.*;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A directory of tables as a catalog of Spark SQL. A namespace is a directory in it, and a table a
 * directory in one of these; a name that is a path, as in kudulite.`/data/t`, is the table there.
 *
 * It only translates. Each question goes to the Python source as an option, and the answer comes
 * back as the metadata of a schema (kudulite_spark/sql/catalog.py); both are JSON. Errors travel in
 * the answer, because Spark wraps an exception of Python in one of its own, whereas IF EXISTS and
 * the like rest on the classes of Spark. To load a table is a load(), which fixes the snapshot.
 * CatalogWithViews is the same with views, for the versions of Spark that have them in catalogs.
 */
public class Catalog
    implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog, FunctionCatalog {
  static final String ERROR_CLASS = "PYTHON_DATA_SOURCE_ERROR";
  static final String QUESTION = "kudulitecatalog";
  private static final String KEY = "spark.kudulite.primaryKey";

  private String name;
  private String warehouse;

  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    warehouse = options.get("warehouse");
    if (warehouse == null || warehouse.isEmpty()) {
      throw refuse("catalog " + name + " has no directory: set spark.sql.catalog." + name
          + ".warehouse to the directory of the tables");
    }
    checked(ask(warehouse, question("warehouse")), null, null);
  }

  public String name() {
    return name;
  }

  public Set<TableCatalogCapability> capabilities() {
    return Set.of(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT,
        TableCatalogCapability.SUPPORT_COLUMN_DEFAULT_VALUE);
  }

  // Questions and answers

  static MetadataBuilder question(String call) {
    ZoneId zone = DateTimeUtils.getZoneId(SQLConf.get().sessionLocalTimeZone()).normalized();
    return new MetadataBuilder().putString("call", call).putString("zone", zone.getId());
  }

  static Metadata ask(String path, MetadataBuilder question) {
    return load(path, Map.of(QUESTION, question.build().json()))
        .created().schema().fields()[0].metadata();
  }

  static boolean isError(Metadata answer, String kind) {
    return answer.contains("error") && answer.getString("error").equals(kind);
  }

  Metadata ask(Identifier ident, MetadataBuilder question) {
    return checked(ask(path(ident), question), ident.namespace(), ident);
  }

  Metadata ask(String[] namespace, MetadataBuilder question) {
    return checked(ask(path(namespace), question), namespace, null);
  }

  /** The answer, if it is none of an error; the error is raised as Spark's exception for it. */
  static Metadata checked(Metadata answer, String[] namespace, Identifier ident) {
    if (!answer.contains("error")) {
      return answer;
    }
    throw raise(ident != null && isError(answer, "TableNotFoundError")
        ? new NoSuchTableException(ident)
        : ident != null && isError(answer, "TableExistsError")
        ? new TableAlreadyExistsException(ident)
        : isError(answer, "NoNamespace") ? new NoSuchNamespaceException(namespace)
        : isError(answer, "NamespaceExists") ? new NamespaceAlreadyExistsException(namespace)
        : isError(answer, "NotEmpty") ? new NonEmptyNamespaceException(namespace)
        : refusal(answer.getString("message")));
  }

  /** What Spark throws for an error of a Python source, and PySpark shows without a trace. */
  private static AnalysisException refusal(String message) {
    return new AnalysisException(ERROR_CLASS, errorParts("use", message));
  }

  /** Throws a refusal. */
  static RuntimeException refuse(String message) {
    throw raise(refusal(message));
  }

  /** What the text of an error of Spark's class for Python sources is made of. */
  static scala.collection.immutable.Map<String, String> errorParts(String action, String message) {
    return Scala.map(Map.of("action", action, "type", DefaultSource.NAME, "msg", message));
  }

  /** Throws an exception that no signature of Spark's interfaces names. */
  @SuppressWarnings("unchecked")
  static <E extends Throwable> RuntimeException raise(Throwable error) throws E {
    throw (E) error;
  }

  /** An empty list is left out of an answer: Metadata would take it for one of numbers. */
  static String[] names(Metadata answer) {
    return answer.contains("names") ? answer.getStringArray("names") : new String[0];
  }

  /** The texts of an answer that have one of these names. */
  static Map<String, String> texts(Metadata answer, String... names) {
    return Arrays.stream(names).filter(answer::contains)
        .collect(Collectors.toMap(name -> name, answer::getString));
  }

  private String path(String[] namespace) {
    // kudulite.`/data/t`.versions: the table at a path takes the place of a namespace.
    boolean isPath = namespace.length > 0 && namespace[0].matches("/.*|\\w+://.*");
    return Stream.concat(Stream.of(isPath ? namespace[0] : warehouse),
        Arrays.stream(namespace).skip(isPath ? 1 : 0).map(this::part))
        .collect(Collectors.joining("/"));
  }

  String path(Identifier ident) {
    return path(named(ident.namespace(), ident.name()));
  }

  private static String[] named(String[] namespace, String name) {
    return Stream.concat(Arrays.stream(namespace), Stream.of(name)).toArray(String[]::new);
  }

  private String part(String part) {
    if (part.isEmpty() || part.startsWith(".") || part.indexOf('/') >= 0) {
      throw refuse("catalog " + name + ": '" + part + "' is the name of no"
          + " table or namespace; it becomes the name of a directory: without / and not beginning"
          + " with a dot");
    }
    return part;
  }

  // Tables

  public Identifier[] listTables(String[] namespace) {
    return identifiers(namespace, ask(namespace, question("tables")));
  }

  static Identifier[] identifiers(String[] namespace, Metadata answer) {
    return Arrays.stream(names(answer))
        .map(name -> Identifier.of(namespace, name)).toArray(Identifier[]::new);
  }

  public Table loadTable(Identifier ident) {
    return load(ident, path(ident), Map.of(), false);
  }

  /** To write. A table that rows are only inserted into is noted as that. */
  public Table loadTable(Identifier ident, Set<TableWritePrivilege> privileges) {
    Load load = load(path(ident), Map.of());
    if (isView(load)) {
      throw refuse(name + "." + ident + " is a view, which is only read");
    }
    return table(ident, load, privileges.equals(Set.of(TableWritePrivilege.INSERT)));
  }

  /** Whether a name that was loaded is that of a view, and of no table. */
  static boolean isView(Load load) {
    return load.note().contains("view");
  }

  /** Whether Spark reads the views of this catalog. */
  boolean hasViews() {
    return false;
  }

  /** TIMESTAMP AS OF. */
  public Table loadTable(Identifier ident, long microseconds) {
    return loadAt(ident, Long.toString(microseconds));
  }

  /** VERSION AS OF a tag or a HybridTime. */
  public Table loadTable(Identifier ident, String version) {
    return loadAt(ident,
        ask(ident, question("moment").putString("version", version)).getString("moment"));
  }

  private Table loadAt(Identifier ident, String moment) {
    return load(ident, path(ident), Map.of("snapshotTimestamp", moment), false);
  }

  private CatalogTable load(
      Identifier ident, String path, Map<String, String> more, boolean isInserted) {
    return table(ident, load(path, more), isInserted);
  }

  CatalogTable table(Identifier ident, Load load, boolean isInserted) {
    if (isView(load) && !hasViews()) {
      throw refuse(name + "." + ident + " is a view: Spark 4.3 and newer read it, in a catalog of "
          + "the class kudulite.CatalogWithViews, as kudulite_spark.register makes it");
    }
    checked(load.note(), null, ident);
    return new CatalogTable(load, name + "." + ident, isInserted);
  }

  static Load load(String path, Map<String, String> more) {
    CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(more);
    return new Load(Load.with(options, Map.of("path", path)), null, "catalog");
  }

  /** CHANGES FROM … TO …: the metadata table of the changes. Spark 4.1 has no such clause. */
  public Changelog loadChangelog(
      Identifier ident, ChangelogContext context, CaseInsensitiveStringMap options) {
    Metadata window = ask(ident, Changes.bounds(context, question("window")));
    return Changes.of(load(ident, path(ident) + "/changes",
        texts(window, "startTimestamp", "endTimestamp", "changeImages"), false));
  }

  public Table createTable(Identifier ident, TableInfo info) {
    ask(ident, definition(ident, info, "create"));
    return loadTable(ident);
  }

  private MetadataBuilder definition(Identifier ident, TableInfo info, String call) {
    List<String> key = new ArrayList<>();
    for (Constraint constraint : info.constraints()) {
      if (!(constraint instanceof PrimaryKey primary)) {
        throw refuse("table " + name + "." + ident + ": " + constraint.toDDL()
            + ": kudulite has no constraint but PRIMARY KEY and NOT NULL");
      }
      for (NamedReference column : primary.columns()) {
        key.add(column.fieldNames()[0]);
      }
    }
    MetadataBuilder given = new MetadataBuilder();
    info.properties().forEach(given::putString);
    MetadataBuilder question = question(call);
    if (SQLConf.get().contains(KEY)) {
      question.putString("keySetting", SQLConf.get().getConfString(KEY));
    }
    return question
        .putString("schema", info.schema().json())
        .putStringArray("partitions", Arrays.stream(info.partitions())
            .map(Transform::describe).toArray(String[]::new))
        .putStringArray("key", key.toArray(new String[0]))
        .putMetadata("properties", given.build());
  }

  public StagedTable stageCreate(Identifier ident, TableInfo info) {
    return new Staged(ident, info, "create");
  }

  public StagedTable stageReplace(Identifier ident, TableInfo info) {
    return new Staged(ident, info, "replace");
  }

  public StagedTable stageCreateOrReplace(Identifier ident, TableInfo info) {
    return new Staged(ident, info, "createOrReplace");
  }

  /** What readers see only when it is committed: a new table, or new rows of the present one. */
  private class Staged extends CatalogTable implements StagedTable {
    private final Identifier ident;
    private final MetadataBuilder publish;
    private final boolean isOverwrite;

    Staged(Identifier ident, TableInfo info, String kind) {
      this(ident, kind, ask(ident, definition(ident, info, "stage").putString("kind", kind)));
    }

    private Staged(Identifier ident, String kind, Metadata staged) {
      super(load(staged.getString("path"), Map.of()), name + "." + ident, false);
      this.ident = ident;
      isOverwrite = staged.getBoolean("isOverwrite");
      publish = question("publish").putString("kind", kind)
          .putString("staged", staged.getString("path")).putBoolean("isWritten", false);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      publish.putBoolean("isWritten", true);
      if (!isOverwrite) {
        return super.newWriteBuilder(info);
      }
      // REPLACE replaces all rows, whatever the session's setting for partitions is.
      return ((SupportsTruncate) super.newWriteBuilder(new WriteInfo(info.queryId(), info.schema(),
          Load.with(info.options(), Map.of("partitionOverwriteMode", "static"))))).truncate();
    }

    public CustomTaskMetric[] reportDriverMetrics() {
      return new CustomTaskMetric[0];
    }

    public void commitStagedChanges() {
      ask(ident, publish);
    }

    public void abortStagedChanges() {
      ask(ident, publish.putString("call", "unstage"));
    }
  }

  public Table alterTable(Identifier ident, TableChange... changes) {
    Metadata[] steps = Arrays.stream(changes).map(Catalog::step).toArray(Metadata[]::new);
    ask(ident, question("alter").putMetadataArray("steps", steps));
    return loadTable(ident);
  }

  private static Metadata step(TableChange change) {
    MetadataBuilder step =
        new MetadataBuilder().putString("step", change.getClass().getSimpleName());
    if (change instanceof TableChange.ColumnChange column) {
      step.putStringArray("column", column.fieldNames());
    }
    if (change instanceof TableChange.AddColumn add) {
      step.putString("type", typeOf(add.dataType(), add.isNullable()));
      step.putString("comment", add.comment() == null ? "" : add.comment());
      if (add.defaultValue() != null) {
        step.putString("default", add.defaultValue().getSql());
      }
      if (add.position() != null) {
        step.putString("position", add.position().toString());
      }
    } else if (change instanceof TableChange.RenameColumn rename) {
      step.putString("to", rename.newName());
    } else if (change instanceof TableChange.UpdateColumnType update) {
      step.putString("type", typeOf(update.newDataType(), true));
    } else if (change instanceof TableChange.UpdateColumnComment update) {
      step.putString("comment", update.newComment());
    } else if (change instanceof TableChange.UpdateColumnDefaultValue update) {
      DefaultValue value = update.newCurrentDefault();
      step.putString("default", value == null ? "" : value.getSql());
    } else if (change instanceof TableChange.SetProperty property) {
      step.putString("property", property.property()).putString("value", property.value());
    } else if (change instanceof TableChange.RemoveProperty property) {
      step.putString("property", property.property());
    }
    return step.build();
  }

  private static String typeOf(DataType type, boolean isNullable) {
    return new StructType().add("column", type, isNullable).json();
  }

  public boolean dropTable(Identifier ident) {
    Metadata answer = ask(path(ident), question("drop"));
    return !isError(answer, "TableNotFoundError") && checked(answer, null, ident) != null;
  }

  public void renameTable(Identifier ident, Identifier to) {
    Metadata answer = ask(path(ident), question("rename").putString("to", path(to)));
    checked(answer, null, isError(answer, "TableExistsError") ? to : ident);
  }

  // Procedures

  public UnboundProcedure loadProcedure(Identifier ident) {
    MetadataBuilder question = question("procedure").putString("name", ident.name());
    return new Procedure(
        this, ident.name(), List.of(names(checked(ask(warehouse, question), null, null))));
  }

  public Identifier[] listProcedures(String[] namespace) {
    return identifiers(namespace, ask(warehouse, question("procedures")));
  }

  Metadata call(String procedure, Metadata arguments) {
    return checked(ask(warehouse, question("callProcedure").putString("name", procedure)
        .putString("catalog", name).putMetadata("arguments", arguments)), null, null);
  }

  // Functions

  public Identifier[] listFunctions(String[] namespace) {
    return new Identifier[0];
  }

  /** The one that a write names, to send rows to their tablets. */
  public UnboundFunction loadFunction(Identifier ident) {
    try {
      return new Tablets(ident.name());
    } catch (Exception other) {
      throw raise(new NoSuchFunctionException(ident));
    }
  }

  // Namespaces

  public String[][] listNamespaces() {
    return listNamespaces(new String[0]);
  }

  public String[][] listNamespaces(String[] namespace) {
    return Arrays.stream(names(ask(namespace, question("namespaces"))))
        .map(name -> named(namespace, name)).toArray(String[][]::new);
  }

  public boolean namespaceExists(String[] namespace) {
    return !isError(ask(path(namespace), question("namespaces")), "NoNamespace");
  }

  public Map<String, String> loadNamespaceMetadata(String[] namespace) {
    ask(namespace, question("namespaces"));
    return Map.of(SupportsNamespaces.PROP_LOCATION, path(namespace));
  }

  public void createNamespace(String[] namespace, Map<String, String> properties) {
    ask(namespace, question("createNamespace"));
  }

  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw refuse("catalog " + name + ": a namespace is a directory without properties or comment");
  }

  public boolean dropNamespace(String[] namespace, boolean cascade) {
    ask(namespace, question("dropNamespace").putBoolean("cascade", cascade));
    return true;
  }
}
