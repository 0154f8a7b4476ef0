package kudulite;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.DataFrameReader;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.SchemaRelationProvider;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

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
    HadoopFsRelation found = (HadoopFsRelation) plan.relation();
    return found.copy(new Index(found.location(), schema), found.partitionSchema(),
        found.dataSchema(), found.bucketSpec(), found.fileFormat(), found.options(),
        found.sparkSession());
  }

  private static String[] paths(String json) {
    try {
      return new ObjectMapper().readValue(json, String[].class);
    } catch (JsonProcessingException error) {
      throw new IllegalArgumentException("option " + FILES + " is no list of texts", error);
    }
  }

  /** Files of which each row has a position beside the columns that they store. */
  static class Index implements FileIndex {
    private final FileIndex files;
    private final long rowBytes;

    Index(FileIndex files, StructType schema) {
      this.files = files;
      long bytes = 8;  // of each row, as Spark counts
      for (StructField field : schema.fields()) {
        bytes += field.name().equals(BaseFiles.POSITION) ? 0 : field.dataType().defaultSize();
      }
      rowBytes = bytes;
    }

    public boolean equals(Object other) {
      return other instanceof Index && files.equals(((Index) other).files);
    }

    public int hashCode() {
      return files.hashCode();
    }

    public long sizeInBytes() {
      return (long) (files.sizeInBytes() * (1 + 8.0 / rowBytes));
    }

    public Seq<Path> rootPaths() {
      return files.rootPaths();
    }

    public Seq<PartitionDirectory> listFiles(Seq<Expression> partition, Seq<Expression> data) {
      return files.listFiles(partition, data);
    }

    public String[] inputFiles() {
      return files.inputFiles();
    }

    public void refresh() {
      files.refresh();
    }

    public StructType partitionSchema() {
      return files.partitionSchema();
    }
  }
}
