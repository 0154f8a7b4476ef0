package kudulite;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Arrays;
import org.apache.spark.sql.DataFrameReader;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.SchemaRelationProvider;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Map;

/**
 * The data source that read_table names for files with an overlay: BaseFiles, with a size.
 *
 * Spark estimates the size of some columns by their part of a row, and plans joins by it. A row of
 * BaseFiles also has a position, which no file stores, so the columns would count for less than
 * they do in a table without changes. The option `files` has the files as a JSON list of URLs.
 */
public class OverlaidFiles implements SchemaRelationProvider {
  static final String FILES = "files";

  public BaseRelation createRelation(
      SQLContext context, Map<String, String> options, StructType schema) {
    DataFrameReader reader = context.sparkSession().read()
        .format("kudulite.BaseFiles").schema(schema).options(options.removed(FILES))
        .option("__globPaths__", "false");  // in lower case, as it is in options, Spark ignores it
    Dataset<?> files = (Dataset<?>) reader.load(paths(options.apply(FILES)));
    LogicalRelation plan = (LogicalRelation) files.queryExecution().analyzed();
    return new Sized((HadoopFsRelation) plan.relation());
  }

  private static String[] paths(String json) {
    try {
      return new ObjectMapper().readValue(json, String[].class);
    } catch (JsonProcessingException error) {
      throw new IllegalArgumentException("option " + FILES + " is no list of texts", error);
    }
  }

  /** Files of which each row has a position beside the columns that they store. */
  private static class Sized extends HadoopFsRelation {
    Sized(HadoopFsRelation files) {
      super(files.location(), files.partitionSchema(), files.dataSchema(), files.bucketSpec(),
          files.fileFormat(), files.options(), files.sparkSession());
    }

    public long sizeInBytes() {
      int rowBytes = 8 + Arrays.stream(schema().fields())  // as Spark counts
          .filter(field -> !field.name().equals(BaseFiles.POSITION))
          .mapToInt(field -> field.dataType().defaultSize()).sum();
      return (long) (super.sizeInBytes() * (1 + 8.0 / rowBytes));
    }
  }
}
