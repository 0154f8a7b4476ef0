package kudulite;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A directory of tables as a catalog of Spark SQL. A namespace is a directory in it, and a table a
 * directory in one of these; a name that is a path, as in kudulite.`/data/t`, is the table there.
 *
 * It only translates. Each question goes to the Python source as an option, and the answer comes
 * back as the metadata of a schema (kudulite_spark/catalog.py); both are JSON. Errors travel in
 * the answer, because Spark wraps an exception of Python in one of its own, whereas IF EXISTS and
 * the like rest on the classes of Spark. To load a table is a load(), which fixes the snapshot.
 */
public class Catalog implements TableCatalog, SupportsNamespaces {
  static final String ERROR_CLASS = "PYTHON_DATA_SOURCE_ERROR";
  static final String QUESTION = "kudulitecatalog";

  private String name;
  private String warehouse;

  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    warehouse = options.get("warehouse");
    if (warehouse == null || warehouse.isEmpty()) {
      throw new IllegalArgumentException("catalog " + name + " has no directory: set"
          + " spark.sql.catalog." + name + ".warehouse to the directory of the tables");
    }
    isError(ask(warehouse, question("warehouse")));
  }

  public String name() {
    return name;
  }

  public Set<TableCatalogCapability> capabilities() {
    return Set.of(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT);
  }

  // Questions and answers

  private static MetadataBuilder question(String call) {
    return new MetadataBuilder().putString("call", call);
  }

  static Metadata ask(String path, MetadataBuilder question) {
    Map<String, String> options = new HashMap<>();
    options.put("path", path);
    options.put(QUESTION, question.build().json());
    return new DefaultSource.FrontSource().source().createDataSourceInPython(
        DefaultSource.NAME, new CaseInsensitiveStringMap(options), scala.Option.empty())
        .schema().fields()[0].metadata();
  }

  /** Whether the answer is an error of one of these kinds; any other error is thrown. */
  static boolean isError(Metadata answer, String... kinds) {
    if (!answer.contains("error")) {
      return false;
    }
    if (!Arrays.asList(kinds).contains(answer.getString("error"))) {
      Catalog.<RuntimeException>raise(
          new AnalysisException(ERROR_CLASS, errorParts("use", answer.getString("message"))));
    }
    return true;
  }

  /** What the text of an error of Spark's class for Python sources is made of. */
  static scala.collection.immutable.Map<String, String> errorParts(String action, String message) {
    Map<String, String> parts = new HashMap<>();
    parts.put("action", action);
    parts.put("type", DefaultSource.NAME);
    parts.put("msg", message);
    return scala.collection.immutable.Map$.MODULE$.from(
        scala.jdk.javaapi.CollectionConverters.asScala(parts));
  }

  /** Throws an exception that no signature of Spark's interfaces names. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> void raise(Throwable error) throws E {
    throw (E) error;
  }

  /** An empty list is left out of an answer: Metadata would take it for one of numbers. */
  private static String[] names(Metadata answer) {
    return answer.contains("names") ? answer.getStringArray("names") : new String[0];
  }

  private String path(String[] namespace) {
    StringBuilder path = new StringBuilder(warehouse);
    for (String part : namespace) {
      path.append('/').append(checked(part));
    }
    return path.toString();
  }

  private String path(Identifier ident) {
    if (ident.namespace().length == 0 && ident.name().startsWith("/")) {
      return ident.name();
    }
    return path(ident.namespace()) + "/" + checked(ident.name());
  }

  private String checked(String part) {
    if (part.isEmpty() || part.startsWith(".") || part.indexOf('/') >= 0) {
      throw new IllegalArgumentException("catalog " + name + ": '" + part + "' is the name of no"
          + " table or namespace; it becomes the name of a directory: without / and not beginning"
          + " with a dot");
    }
    return part;
  }

  // Tables

  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    Metadata answer = ask(path(namespace), question("tables"));
    if (isError(answer, "NoNamespace")) {
      throw new NoSuchNamespaceException(namespace);
    }
    List<Identifier> found = new ArrayList<>();
    for (String table : names(answer)) {
      found.add(Identifier.of(namespace, table));
    }
    return found.toArray(new Identifier[0]);
  }

  public Table loadTable(Identifier ident) throws NoSuchTableException {
    return load(ident, null);
  }

  /** TIMESTAMP AS OF. */
  public Table loadTable(Identifier ident, long microseconds) throws NoSuchTableException {
    return load(ident, Long.toString(microseconds));
  }

  /** VERSION AS OF a tag or a HybridTime. */
  public Table loadTable(Identifier ident, String version) throws NoSuchTableException {
    Metadata answer = ask(path(ident), question("moment").putString("version", version));
    if (isError(answer, "TableNotFoundError")) {
      throw new NoSuchTableException(ident);
    }
    return load(ident, answer.getString("moment"));
  }

  private Table load(Identifier ident, String snapshot) throws NoSuchTableException {
    Map<String, String> options = new HashMap<>();
    options.put("path", path(ident));
    if (snapshot != null) {
      options.put("snapshotTimestamp", snapshot);
    }
    DefaultSource.Load load =
        new DefaultSource.Load(new CaseInsensitiveStringMap(options), null, "catalog");
    StructType schema = load.schema();
    if (isError(load.table(), "TableNotFoundError")) {
      throw new NoSuchTableException(ident);
    }
    return new CatalogTable(load, schema, name + "." + ident);
  }

  public Table createTable(Identifier ident, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    List<String> key = new ArrayList<>();
    for (Constraint constraint : info.constraints()) {
      if (!(constraint instanceof PrimaryKey)) {
        throw new IllegalArgumentException("table " + name + "." + ident + ": "
            + constraint.toDDL() + ": kudulite has no constraint but PRIMARY KEY and NOT NULL");
      }
      for (NamedReference column : ((PrimaryKey) constraint).columns()) {
        key.add(column.fieldNames()[0]);
      }
    }
    return create(ident, info.schema(), info.partitions(), info.properties(), key);
  }

  public Table createTable(
      Identifier ident, StructType schema, Transform[] partitions, Map<String, String> properties)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return create(ident, schema, partitions, properties, new ArrayList<>());
  }

  private Table create(Identifier ident, StructType schema, Transform[] partitions,
      Map<String, String> properties, List<String> key)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    List<String> parts = new ArrayList<>();
    for (Transform transform : partitions) {
      parts.add(transform.describe());
    }
    MetadataBuilder given = new MetadataBuilder();
    properties.forEach(given::putString);
    Metadata answer = ask(path(ident), question("create")
        .putString("schema", schema.json())
        .putStringArray("partitions", parts.toArray(new String[0]))
        .putStringArray("key", key.toArray(new String[0]))
        .putMetadata("properties", given.build()));
    if (isError(answer, "NoNamespace", "TableExistsError")) {
      if (answer.getString("error").equals("NoNamespace")) {
        throw new NoSuchNamespaceException(ident.namespace());
      }
      throw new TableAlreadyExistsException(ident);
    }
    try {
      return loadTable(ident);
    } catch (NoSuchTableException gone) {
      throw new IllegalStateException(
          "table " + path(ident) + " was dropped by somebody else while it was made", gone);
    }
  }

  public Table alterTable(Identifier ident, TableChange... changes) throws NoSuchTableException {
    Metadata[] steps = new Metadata[changes.length];
    for (int i = 0; i < changes.length; i++) {
      steps[i] = step(changes[i]);
    }
    Metadata answer = ask(path(ident), question("alter").putMetadataArray("steps", steps));
    if (isError(answer, "TableNotFoundError")) {
      throw new NoSuchTableException(ident);
    }
    return loadTable(ident);
  }

  private static Metadata step(TableChange change) {
    MetadataBuilder step = new MetadataBuilder().putString("step", change.getClass().getSimpleName());
    if (change instanceof TableChange.ColumnChange) {
      step.putStringArray("column", ((TableChange.ColumnChange) change).fieldNames());
    }
    if (change instanceof TableChange.AddColumn) {
      TableChange.AddColumn add = (TableChange.AddColumn) change;
      step.putString("type", typeOf(add.dataType(), add.isNullable()));
      step.putString("comment", add.comment() == null ? "" : add.comment());
      if (add.position() != null) {
        step.putString("position", add.position().toString());
      }
    } else if (change instanceof TableChange.RenameColumn) {
      step.putString("to", ((TableChange.RenameColumn) change).newName());
    } else if (change instanceof TableChange.UpdateColumnType) {
      step.putString("type", typeOf(((TableChange.UpdateColumnType) change).newDataType(), true));
    } else if (change instanceof TableChange.UpdateColumnComment) {
      step.putString("comment", ((TableChange.UpdateColumnComment) change).newComment());
    } else if (change instanceof TableChange.SetProperty) {
      step.putString("property", ((TableChange.SetProperty) change).property());
      step.putString("value", ((TableChange.SetProperty) change).value());
    } else if (change instanceof TableChange.RemoveProperty) {
      step.putString("property", ((TableChange.RemoveProperty) change).property());
    }
    return step.build();
  }

  private static String typeOf(DataType type, boolean isNullable) {
    return new StructType().add("column", type, isNullable).json();
  }

  public boolean dropTable(Identifier ident) {
    return !isError(ask(path(ident), question("drop")), "TableNotFoundError");
  }

  public void renameTable(Identifier ident, Identifier to)
      throws NoSuchTableException, TableAlreadyExistsException {
    Metadata answer = ask(path(ident), question("rename").putString("to", path(to)));
    if (isError(answer, "TableExistsError", "TableNotFoundError")) {
      if (answer.getString("error").equals("TableExistsError")) {
        throw new TableAlreadyExistsException(to);
      }
      throw new NoSuchTableException(ident);
    }
  }

  // Namespaces

  public String[][] listNamespaces() throws NoSuchNamespaceException {
    return listNamespaces(new String[0]);
  }

  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    Metadata answer = ask(path(namespace), question("namespaces"));
    if (isError(answer, "NoNamespace")) {
      throw new NoSuchNamespaceException(namespace);
    }
    String[] names = names(answer);
    String[][] found = new String[names.length][];
    for (int i = 0; i < names.length; i++) {
      found[i] = Arrays.copyOf(namespace, namespace.length + 1);
      found[i][namespace.length] = names[i];
    }
    return found;
  }

  public boolean namespaceExists(String[] namespace) {
    return !isError(ask(path(namespace), question("namespaces")), "NoNamespace");
  }

  public Map<String, String> loadNamespaceMetadata(String[] namespace)
      throws NoSuchNamespaceException {
    if (!namespaceExists(namespace)) {
      throw new NoSuchNamespaceException(namespace);
    }
    Map<String, String> found = new HashMap<>();
    found.put(SupportsNamespaces.PROP_LOCATION, path(namespace));
    return found;
  }

  public void createNamespace(String[] namespace, Map<String, String> properties)
      throws NamespaceAlreadyExistsException {
    Metadata answer = ask(path(namespace), question("createNamespace"));
    if (isError(answer, "NamespaceExists")) {
      throw new NamespaceAlreadyExistsException(namespace);
    }
  }

  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw new UnsupportedOperationException(
        "catalog " + name + ": a namespace is a directory and has no properties or comment");
  }

  public boolean dropNamespace(String[] namespace, boolean cascade)
      throws NoSuchNamespaceException, NonEmptyNamespaceException {
    Metadata answer =
        ask(path(namespace), question("dropNamespace").putBoolean("cascade", cascade));
    if (isError(answer, "NotEmpty", "NoNamespace")) {
      if (answer.getString("error").equals("NotEmpty")) {
        throw new NonEmptyNamespaceException(namespace);
      }
      throw new NoSuchNamespaceException(namespace);
    }
    return true;
  }
}
