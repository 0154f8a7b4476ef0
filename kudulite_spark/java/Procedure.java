package kudulite;

import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * CALL kudulite.name(…): one question, which Python answers with one row. All arguments are texts;
 * the name of one that may be left out ends with a question mark there.
 */
record Procedure(Catalog catalog, String name, List<String> parameterNames)
    implements UnboundProcedure, BoundProcedure {
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
    return parameterNames.stream().map(name -> {
      ProcedureParameter.Builder made =
          ProcedureParameter.in(name.replace("?", ""), DataTypes.StringType);
      return (name.endsWith("?") ? made.defaultValue("NULL") : made).build();
    }).toArray(ProcedureParameter[]::new);
  }

  public Iterator<Scan> call(InternalRow arguments) {
    MetadataBuilder given = new MetadataBuilder();
    for (int i = 0; i < parameterNames.size(); i++) {
      if (!arguments.isNullAt(i)) {
        given.putString(parameterNames.get(i).replace("?", ""), arguments.getString(i));
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
    return List.<Scan>of(new Answer(schema, row)).iterator();
  }

  /** The one row, which is known when the call is planned. */
  private record Answer(StructType readSchema, Object[] row) implements LocalScan {
    public InternalRow[] rows() {
      return new InternalRow[] {new GenericInternalRow(row)};
    }
  }
}
