package kudulite;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.OptionalLong;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What the scans of one load() have in common: the options, and the Python instance with the
 * snapshot. All that Python can return is a schema, so it says what it knows of the table, such as
 * the number of rows, in a note on the first column (kudulite_spark/types.py and catalog.py).
 */
class Load {
  private static final String ASKS = "kudulitefront";
  private static final String COUNT = "kudulitecount";
  private static final String NOTE = "kudulite.table";

  final CaseInsensitiveStringMap options;
  private final StructType given;
  private final String asks;
  private final Planner.Source source = new Planner.Source(this);
  private PythonDataSourceCreationResult created;
  private long counted = -1;

  Load(CaseInsensitiveStringMap options, StructType given) {
    this(options, given, "true");
  }

  /** For the catalog, which `asks` for more: the note then also has the key and the properties. */
  Load(CaseInsensitiveStringMap options, StructType given, String asks) {
    this.options = options;
    this.given = given;
    this.asks = asks;
  }

  /** Options with others added to them, or in their place. */
  static CaseInsensitiveStringMap with(CaseInsensitiveStringMap options, Map<String, String> more) {
    Map<String, String> all = new HashMap<>(options.asCaseSensitiveMap());
    all.putAll(more);
    return new CaseInsensitiveStringMap(all);
  }

  /** The load of a scan: a new one for other options, and for the moment of the scan's query. */
  Load with(CaseInsensitiveStringMap other) {
    boolean isOfQuery = "query".equalsIgnoreCase(other.get("snapshotTimestamp"));
    if (!isOfQuery && other.equals(options)) {
      return this;
    }
    Load found = new Load(other, given, asks);
    found.created();
    return found;
  }

  /** The instance: the same for all scans of this load(). */
  synchronized PythonDataSourceCreationResult created() {
    if (created == null) {
      created = create(options);
    }
    return created;
  }

  private PythonDataSourceCreationResult create(CaseInsensitiveStringMap own) {
    return source.source().createDataSourceInPython(
        DefaultSource.NAME, withSettings(with(own, Map.of(ASKS, asks))), Option.apply(given));
  }

  /**
   * Options with the session's settings of object stores added to them, for a Python process. They
   * are in no plan, which Spark would show.
   */
  static CaseInsensitiveStringMap withSettings(CaseInsensitiveStringMap options) {
    Map<String, String> settings = new HashMap<>();
    CollectionConverters.asJava(SQLConf.get().getAllConfs()).forEach((name, value) -> {
      if (name.startsWith("spark.kudulite.storage.") || name.startsWith("spark.hadoop.fs.s3a.")) {
        settings.put("kudulitesetting." + name, value);
      }
    });
    return with(options, settings);
  }

  /** The schema, without the note. */
  StructType schema() {
    return new StructType(Arrays.stream(created().schema().fields()).map(field -> new StructField(
        field.name(), field.dataType(), field.nullable(),
        new MetadataBuilder().withMetadata(field.metadata()).remove(NOTE).build()))
        .toArray(StructField[]::new));
  }

  /** The note; with a schema that was given there is none. */
  Metadata note() {
    return given != null ? Metadata.empty() : note(created());
  }

  private static Metadata note(PythonDataSourceCreationResult created) {
    StructField[] fields = created.schema().fields();
    boolean isNoted = fields.length > 0 && fields[0].metadata().contains(NOTE);
    return isNoted ? fields[0].metadata().getMetadata(NOTE) : Metadata.empty();
  }

  /** An estimate of the number of rows. */
  OptionalLong rows() {
    return note().contains("rowCount")
        ? OptionalLong.of(note().getLong("rowCount")) : OptionalLong.empty();
  }

  /** Whether Python can count the rows of a scan of all of them. */
  boolean canCount() {
    return note().contains("countedAt");
  }

  /** The exact number of rows, counted at the first call, in Python, without a job. */
  synchronized long counted() {
    if (counted < 0) {
      Map<String, String> question = Map.of(COUNT, note().getString("countedAt"));
      counted = note(create(with(options, question))).getLong("rowCount");
    }
    return counted;
  }
}
