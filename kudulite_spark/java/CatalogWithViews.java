package kudulite;

import java.util.Arrays;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.analysis.NoSuchViewException;
import org.apache.spark.sql.catalyst.analysis.ViewAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.types.*;

/**
 * The catalog with views, for Spark 4.3 and newer: older versions lack the interface.
 *
 * A view is a text that Python stores (kudulite_spark/sql/views.py). A load() says whether it found
 * a table or a view, so that a name is looked up in one step.
 */
public class CatalogWithViews extends Catalog implements RelationCatalog {
  public Relation loadRelation(Identifier ident) {
    Load load = load(path(ident), Map.of());
    return isView(load) ? view(load.note().getMetadata("view")) : table(ident, load, false);
  }

  boolean hasViews() {
    return true;
  }

  private static View view(Metadata stored) {
    View.Builder view = new View.Builder()
        .withSchema((StructType) DataType.fromJson(stored.getString("schema")))
        .withProperties(texts(stored, "properties", "propertyNames"))
        .withQueryText(stored.getString("query"))
        .withCurrentNamespace(list(stored, "namespace"))
        .withSqlConfigs(texts(stored, "settings", "settingNames"))
        .withQueryColumnNames(list(stored, "queryColumns"));
    if (stored.contains("catalog")) {
      view.withCurrentCatalog(stored.getString("catalog"));
    }
    if (stored.contains("schemaMode")) {
      view.withSchemaMode(stored.getString("schemaMode"));
    }
    return view.build();
  }

  private static Map<String, String> texts(Metadata stored, String member, String names) {
    return texts(stored.getMetadata(member), list(stored, names));
  }

  private static String[] list(Metadata stored, String member) {
    return stored.contains(member) ? stored.getStringArray(member) : new String[0];
  }

  private static Metadata stored(View view) {
    MetadataBuilder stored = new MetadataBuilder()
        .putString("query", view.queryText())
        .putString("schema", view.schema().json())
        .putStringArray("namespace", view.currentNamespace())
        .putStringArray("queryColumns", view.queryColumnNames())
        .putMetadata("settings", texts(view.sqlConfigs()))
        .putMetadata("properties", texts(view.properties()));
    if (view.currentCatalog() != null) {
      stored.putString("catalog", view.currentCatalog());
    }
    if (view.schemaMode() != null) {
      stored.putString("schemaMode", view.schemaMode());
    }
    return stored.build();
  }

  private static Metadata texts(Map<String, String> texts) {
    MetadataBuilder built = new MetadataBuilder();
    texts.forEach(built::putString);
    return built.build();
  }

  public Identifier[] listViews(String[] namespace) {
    return identifiers(namespace, ask(namespace, question("views")));
  }

  /** The default loads each table, only to say that it is one. */
  public TableSummary[] listRelationSummaries(String[] namespace) {
    return Stream.concat(
        Arrays.stream(listTables(namespace)).map(ident ->
            TableSummary.of(ident, TableSummary.MANAGED_TABLE_TYPE)),
        Arrays.stream(listViews(namespace)).map(ident ->
            TableSummary.of(ident, TableSummary.VIEW_TABLE_TYPE)))
        .toArray(TableSummary[]::new);
  }

  public View createView(Identifier ident, View view) {
    return write(ident, view, "create");
  }

  public View replaceView(Identifier ident, View view) {
    return write(ident, view, "replace");
  }

  public View createOrReplaceView(Identifier ident, View view) {
    return write(ident, view, "createOrReplace");
  }

  private View write(Identifier ident, View view, String kind) {
    checkNamespace(ident);
    Metadata answer = ask(path(ident),
        question("createView").putString("kind", kind).putMetadata("view", stored(view)));
    checkedView(answer, ident, ident);
    return view;
  }

  /** Raises the error in an answer: no view `ident`, or a view or table `created`. */
  private static void checkedView(Metadata answer, Identifier ident, Identifier created) {
    if (isError(answer, "NoView")) {
      throw raise(new NoSuchViewException(ident));
    }
    if (isError(answer, "ViewExists")) {
      throw raise(new ViewAlreadyExistsException(created));
    }
    checked(answer, created.namespace(), ident);
  }

  public boolean dropView(Identifier ident) {
    Metadata answer = ask(path(ident), question("dropView"));
    if (isError(answer, "NoView")) {
      return false;
    }
    checkedView(answer, ident, ident);
    return true;
  }

  /** Spark names a view that it reads by catalog, schema and name, and fails without a schema. */
  private void checkNamespace(Identifier ident) {
    if (ident.namespace().length == 0) {
      throw refuse("view " + name() + "." + ident + ": Spark reads views of a namespace only; make "
          + "one with CREATE NAMESPACE, as in " + name() + ".db." + ident.name());
    }
  }

  public void renameView(Identifier ident, Identifier to) {
    checkNamespace(to);
    checkedView(ask(path(ident), question("renameView").putString("to", path(to))), ident, to);
  }
}
