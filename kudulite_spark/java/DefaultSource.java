package kudulite;

import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.CreatableRelationProvider;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

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
 *     Spark → DefaultSource → FrontTable   ─┬ reads   FrontScan, PythonBatches
 *             Catalog       → CatalogTable ─┴ writes  Tablets, ChangeRule, ChangeWriter, RowBatches
 *
 * Spark 4.1, 4.2 and 4.3 have the same classes and signatures, but where a comment says otherwise.
 */
public class DefaultSource implements TableProvider, CreatableRelationProvider {
  static final String NAME = "kudulite";

  private Load load;
  private PythonDataSourceV2 stock;

  /** With the setting spark.kudulite.front=false a load() is the stock one, without the front. */
  private static boolean isOff() {
    String setting = "spark.kudulite.front";
    return !isTrue(setting, SQLConf.get().getConfString(setting, "true"));
  }

  static boolean isTrue(String name, String text) {
    String word = text.strip().toLowerCase(Locale.ROOT);
    if (!word.equals("true") && !word.equals("false")) {
      throw Catalog.refuse(name + " is '" + text + "', expected true or false");
    }
    return word.equals("true");
  }

  public StructType inferSchema(CaseInsensitiveStringMap options) {
    ChangeRule.install();
    if (isOff()) {
      return stock().inferSchema(options);
    }
    load = new Load(options, null);
    return load.schema();
  }

  private PythonDataSourceV2 stock() {
    if (stock == null) {
      stock = new PythonDataSourceV2();
      stock.setShortName(NAME);
    }
    return stock;
  }

  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    if (stock != null || isOff()) {
      return stock().getTable(schema, partitioning, properties);
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
  public BaseRelation createRelation(SQLContext context, SaveMode mode,
      scala.collection.immutable.Map<String, String> options, Dataset<Row> rows) {
    CaseInsensitiveStringMap given =
        new CaseInsensitiveStringMap(CollectionConverters.asJava(options));
    Tablets tablets = Tablets.of(given, given.get("path"), rows.columns());
    Dataset<Row> sent = tablets == null ? rows : tablets.sent(rows);
    sent.write().format(NAME).mode(mode).options(given.asCaseSensitiveMap())
        .option(Tablets.OPTION, "false").save();
    return new BaseRelation() {
      public SQLContext sqlContext() {
        return context;
      }

      public StructType schema() {
        return rows.schema();
      }
    };
  }

  /** Fails, at register(), where Spark's classes are not those that this was made for. */
  public static String check() {
    Load load = new Load(CaseInsensitiveStringMap.empty(), null);
    StructType schema = new StructType();
    new FrontScan(load, schema, load.options, new Filter[0]).toBatch();
    new FrontTable(load, schema).name();
    new Catalog().capabilities();
    for (Class<?> used : List.of(Planner.class, Planner.Step.class, CatalogTable.class,
        ChangeWriter.class, ChangeRule.class, Procedure.class, Tablets.class, RowBatches.class,
        OverlaidFiles.class)) {
      used.getDeclaredMethods();
    }
    PythonBatches.check();
    BaseFiles.check();
    return NAME;
  }
}
