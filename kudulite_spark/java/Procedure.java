package kudulite;

import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;

/** CALL kudulite.name(…): one question, which Python answers with one row. */
class Procedure implements UnboundProcedure, BoundProcedure {
  private final Catalog catalog;
  private final String name;
  private final String[] parameters;

  /** The name of a parameter that may be left out ends with a question mark. */
  Procedure(Catalog catalog, String name, String[] parameters) {
    this.catalog = catalog;
    this.name = name;
    this.parameters = parameters;
  }

  public String name() {
    return name;
  }

  public String description() {
    return "kudulite's " + name;
  }

  public BoundProcedure bind(StructType arguments) {
    return this;
  }

  public boolean isDeterministic() {
    return false;
  }

  public ProcedureParameter[] parameters() {
    ProcedureParameter[] found = new ProcedureParameter[parameters.length];
    for (int i = 0; i < found.length; i++) {
      ProcedureParameter.Builder made =
          ProcedureParameter.in(parameters[i].replace("?", ""), DataTypes.StringType);
      found[i] = (parameters[i].endsWith("?") ? made.defaultValue("NULL") : made).build();
    }
    return found;
  }

  public Iterator<Scan> call(InternalRow arguments) {
    MetadataBuilder given = new MetadataBuilder();
    for (int i = 0; i < parameters.length; i++) {
      if (!arguments.isNullAt(i)) {
        given.putString(parameters[i].replace("?", ""), arguments.getString(i));
      }
    }
    Metadata answer = catalog.call(name, given.build());
    // The session reads again what it has cached of the table.
    SparkSession session = SparkSession.active();
    if (!session.sharedState().cacheManager().isEmpty()) {
      for (String table : answer.getStringArray("names")) {
        session.sql("REFRESH TABLE " + table);
      }
    }
    StructType schema = (StructType) DataType.fromJson(answer.getString("schema"));
    String[] values = answer.getStringArray("values");
    Object[] row = new Object[values.length];
    for (int i = 0; i < row.length; i++) {
      boolean isNumber = schema.apply(i).dataType().equals(DataTypes.LongType);
      row[i] = isNumber ? (Object) Long.valueOf(values[i]) : UTF8String.fromString(values[i]);
    }
    return List.<Scan>of(new DefaultSource.RowScan(schema, row)).iterator();
  }
}
