package kudulite;

import static kudulite.Scala.list;
import static kudulite.Scala.seq;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.IntStream;
import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.objects.AssertNotNull;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.RightOuter$;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.util.RowDeltaUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A rule of Spark's optimizer: an INSERT writes the columns that it names, an UPDATE reads and
 * writes no cells that stay as they are, and a MERGE that only needs to know which keys are there
 * reads no rows.
 *
 * INSERT, df.writeTo and saveAsTable by name: Spark adds the columns that the table has and the
 * rows do not, with their defaults or NULL. They are taken away again, so that an upsert or update
 * leaves those cells as they are. The Python source fills the cells of new rows.
 *
 *     MERGE … ON the key                        is written as
 *       WHEN MATCHED THEN UPDATE SET a            update_ignore
 *       WHEN MATCHED THEN DELETE                  delete_ignore
 *       WHEN MATCHED THEN UPDATE SET all, WHEN
 *       NOT MATCHED THEN INSERT the same          upsert
 *
 * A clause may have no condition, and its values may be of the source only. The Python source looks
 * the keys up at the snapshot of the statement, as for any write of it, and refuses two rows of the
 * source that change one row. Without the rule every UPDATE and MERGE gives the same rows.
 */
class ChangeRule extends Rule<LogicalPlan> {
  private static final String FROM_TARGET = "__row_from_target";
  private static final String ROW_ID = "__row_id";

  /** Gives the rule to the active session, once. */
  static synchronized void install() {
    ExperimentalMethods methods = SparkSession.active().experimental();
    for (Object rule : list(methods.extraOptimizations())) {
      if (rule.getClass() == ChangeRule.class) {
        return;
      }
    }
    List<Rule<LogicalPlan>> rules = new ArrayList<>(list(methods.extraOptimizations()));
    rules.add(new ChangeRule());
    methods.extraOptimizations_$eq(seq(rules));
  }

  public LogicalPlan apply(LogicalPlan plan) {
    if (plan instanceof AppendData append) {
      return inserted(append);
    }
    if (!(plan instanceof WriteDelta delta && delta.write().isDefined()
        && delta.write().get() instanceof CatalogTable.ChangeWrite write
        && write.load().note().contains("isPlain")
        && write.load().note().getBoolean("isPlain"))) {
      return plan;
    }
    LogicalPlan updated = delta.query() instanceof Project top ? updated(top, write) : null;
    if (updated != null) {
      return replaced(plan, delta.query(), updated);
    }
    for (LogicalPlan node = delta.query(); node.children().size() == 1;
        node = node.children().head()) {
      LogicalPlan found = node instanceof MergeRows rows ? merged(rows, write) : null;
      if (found != null) {
        return replaced(plan, node, found);
      }
    }
    return plan;
  }

  private static LogicalPlan replaced(LogicalPlan plan, LogicalPlan old, LogicalPlan given) {
    return plan == old ? given : plan.mapChildren(child -> replaced(child, old, given));
  }

  private static FrontScan scanOf(LogicalPlan plan) {
    return plan instanceof DataSourceV2ScanRelation relation
        && relation.scan() instanceof FrontScan scan ? scan : null;
  }

  // INSERT

  /** A write by name of the columns that the rows have. */
  private static LogicalPlan inserted(AppendData append) {
    if (!append.isByName() || append.write().isEmpty() || append.analyzedQuery().isEmpty()
        || !(append.table() instanceof DataSourceV2Relation relation
        && relation.table() instanceof SupportsWrite table && isOwn(table))
        || !(append.analyzedQuery().get() instanceof Project top
        && top.output().size() == append.query().output().size())) {
      return append;
    }
    List<NamedExpression> columns = new ArrayList<>();
    StructType written = new StructType();
    for (int i = 0; i < top.projectList().size(); i++) {
      Attribute column = append.query().output().apply(i);
      if (!isAdded(top.projectList().apply(i), table, top, append)) {
        columns.add(column);
        written = written.add(new StructField(
            column.name(), column.dataType(), column.nullable(), column.metadata()));
      }
    }
    if (columns.size() == top.projectList().size()) {
      return append;
    }
    CaseInsensitiveStringMap options =
        Load.with(relation.options(), CollectionConverters.asJava(append.writeOptions()));
    Write write = table.newWriteBuilder(new CatalogTable.WriteInfo(
        UUID.randomUUID().toString(), written, options)).build();
    LogicalPlan query = new Project(seq(columns), append.query());
    LogicalPlan taking = copied(relation, Map.of(table, new PartOfTable(table)));
    return copied(append, Map.of(append.query(), query, append.table(), taking,
        append.write(), scala.Option.apply(write)));
  }

  /** A node with some of its parts replaced; the other parts depend on the version of Spark. */
  private static LogicalPlan copied(LogicalPlan plan, Map<Object, Object> replaced) {
    Object[] parts = new Object[plan.productArity()];
    for (int i = 0; i < parts.length; i++) {
      Object part = plan.productElement(i);
      parts[i] = replaced.getOrDefault(part, part);
    }
    return plan.makeCopy(parts);
  }

  /** A table of which some columns are written, so that Spark does not ask for the others. */
  private record PartOfTable(SupportsWrite table) implements SupportsWrite {
    public String name() {
      return table.name();
    }

    public Column[] columns() {
      return table.columns();
    }

    public Set<TableCapability> capabilities() {
      Set<TableCapability> all = new HashSet<>(table.capabilities());
      all.add(TableCapability.ACCEPT_ANY_SCHEMA);
      return all;
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return table.newWriteBuilder(info);
    }
  }

  private static boolean isOwn(SupportsWrite table) {
    return table instanceof FrontTable
        || table instanceof PythonTable && table.name().equals(DefaultSource.NAME);
  }

  /**
   * Whether Spark has added a cell that the rows lack: of no column of theirs, and with the note
   * on the column of the catalog's table. A view's columns have no note. There the cell has
   * metadata of its own, which a constant rarely has, and the projection stands, to Spark, where
   * the statement begins. Nothing is added to the rows of df.write.save, the only such write that
   * has options.
   */
  private static boolean isAdded(
      NamedExpression cell, SupportsWrite table, Project top, AppendData append) {
    if (!((Expression) cell).references().isEmpty()) {
      return false;
    } else if (table instanceof CatalogTable) {
      return cell.metadata().contains(CatalogTable.INSERTED);
    } else if (!append.writeOptions().isEmpty() || !top.origin().equals(append.origin())
        || !(cell instanceof Alias alias && alias.explicitMetadata().isDefined())) {
      return false;
    } else if (top.origin().sqlText().isDefined()) {
      return true;
    }
    throw Catalog.refuse("a DataFrame is written to a view by name, and column " + cell.name()
        + " is missing, or a constant with metadata; which of the two is unknown, and upserts leave"
        + " the cells of a missing column as they are. Write"
        + " df.write.format('kudulite').mode('append').save(path), or INSERT INTO the view (names"
        + " of the columns) in SQL");
  }

  // UPDATE

  /** The rows of an UPDATE without the cells that stay as they are, which are not read either. */
  private static LogicalPlan updated(Project top, CatalogTable.ChangeWrite write) {
    List<Expression> parts = new ArrayList<>();
    LogicalPlan below = top.child();
    for (; below instanceof Filter filter; below = filter.child()) {
      parts.add(filter.condition());
    }
    FrontScan scan = scanOf(below);
    if (!write.isUpdate() || scan == null || scan.load != write.load()) {
      return null;
    }
    Map<String, Attribute> own = named(below);
    List<String> keys = List.of(write.ids.fieldNames());
    List<NamedExpression> cells = new ArrayList<>();
    StructType written = new StructType();
    int place = -1;  // the first cell is the operation, and those after the row are its key
    for (NamedExpression cell : list(top.projectList())) {
      boolean isOfRow = place >= 0 && place < write.rows.size();
      String name = isOfRow ? write.rows.apply(place).name() : "";
      if (isOfRow && !cell.name().equals(name)) {
        return null;
      }
      Expression value = cell instanceof Alias alias ? alias.child() : (Expression) cell;
      Attribute old = keys.contains(name) ? null : own.get(name);
      // NULL stands for what is not read, so a column that must not be NULL is read.
      boolean isKept = old != null && old.nullable() && value.semanticEquals(old);
      if (isOfRow && !isKept) {
        written = written.add(write.rows.apply(place));
      }
      cells.add(isKept ? named(Literal.create(null, old.dataType()), old.newInstance()) : cell);
      place++;
    }
    if (written.size() == write.rows.size() || written.size() == keys.size()) {
      return null;
    }
    cells.forEach(cell -> parts.add((Expression) cell));
    write.become("update", written);
    LogicalPlan found = narrowed(below, scan, AttributeSet.fromAttributeSets(
        seq(parts.stream().map(Expression::references).toList())));
    return new Project(seq(cells), replaced(top.child(), below, found));
  }

  /** The scan of those columns that are in `read`. */
  private static LogicalPlan narrowed(
      LogicalPlan relation, FrontScan scan, AttributeSet read) {
    List<Attribute> columns = new ArrayList<>();
    StructType schema = new StructType();
    for (Attribute column : list(relation.output())) {
      if (read.contains(column)) {
        columns.add(column);
        schema = schema.add(scan.schema.apply(column.name()));
      }
    }
    return copied(relation, Map.of(relation.output(), seq(columns),
        scan, new FrontScan(scan.load, schema, scan.options, scan.filters)));
  }

  // MERGE

  /** The rows of a MERGE without its join, if none of them needs it. */
  private static LogicalPlan merged(MergeRows rows, CatalogTable.ChangeWrite write) {
    LogicalPlan child = rows.child();
    List<NamedExpression> between = new ArrayList<>();
    for (; child instanceof Project project; child = project.child()) {
      between.addAll(list(project.projectList()));
    }
    boolean isUpsert = rows.notMatchedInstructions().size() == 1;
    if (!(child instanceof Join join && join.joinType() == (isUpsert ? RightOuter$.MODULE$
        : Inner$.MODULE$)) || rows.matchedInstructions().size() != 1
        || rows.instructions().size() > 2) {
      return null;
    }
    LogicalPlan target = join.left() instanceof Project project ? project.child() : join.left();
    FrontScan scan = scanOf(target);
    if (scan == null || scan.load != write.load() || scan.filters.length > 0) {
      return null;
    }
    AttributeSet columns = join.left().outputSet();
    if (between.stream().anyMatch(cell -> cell instanceof Alias alias
        && !alias.references().intersect(columns).isEmpty())) {
      return null;
    }
    Map<String, Expression> key = keyOf(join, target, write.ids);
    List<Expression> matched = outputOf(rows.matchedInstructions().head());
    if (key == null || matched == null) {
      return null;
    }
    Object operation = ((Literal) matched.get(0)).value();
    boolean isUpdate = operation.equals(RowDeltaUtils.UPDATE_OPERATION());
    Map<String, Attribute> own = named(target);
    StructType written =
        isUpdate ? written(write, matched, key, own, columns, isUpsert) : write.rows;
    if (written == null) {
      return null;
    }
    if (isUpsert) {
      List<Expression> inserted = outputOf(rows.notMatchedInstructions().head());
      if (inserted == null || !isUpdate || !isSame(write.rows, inserted, matched, key)) {
        return null;
      }
      write.become("upsert", write.rows);
      return withTarget(rows, join, Map.of(), Map.of());
    }
    if (isUpdate && written.size() == key.size()) {
      return null;
    }
    write.become(isUpdate ? "update_ignore" : "delete_ignore", written);
    return withTarget(rows, join, own, key);
  }

  /** The columns that an UPDATE changes, with the key; null if it computes with old cells. */
  private static StructType written(CatalogTable.ChangeWrite write, List<Expression> matched,
      Map<String, Expression> key, Map<String, Attribute> own, AttributeSet old, boolean isUpsert) {
    StructType written = new StructType();
    for (int i = 0; i < write.rows.size(); i++) {
      String name = write.rows.apply(i).name();
      Expression value = matched.get(i + 1);
      boolean isKey = key.containsKey(name);
      boolean isKept = own.containsKey(name) && value.semanticEquals(own.get(name));
      // Rows that match none are updated, too, and must not fail where a value cannot be computed.
      boolean isOfSource = value.references().intersect(old).isEmpty()
          && (isUpsert || value instanceof LeafExpression);
      if (!(isKept || (isKey ? bare(value).semanticEquals(key.get(name)) : isOfSource))) {
        return null;
      }
      written = isKey || !isKept ? written.add(write.rows.apply(i)) : written;
    }
    return written;
  }

  /** Whether the INSERT clause has the cells of the UPDATE clause, and the key. */
  private static boolean isSame(StructType rows, List<Expression> inserted,
      List<Expression> matched, Map<String, Expression> key) {
    return IntStream.range(0, rows.size()).allMatch(i -> {
      Expression ofKey = key.get(rows.apply(i).name());
      Expression value = inserted.get(i + 1);
      return ofKey != null ? bare(value).semanticEquals(ofKey)
          : value.semanticEquals(matched.get(i + 1));
    });
  }

  /** The operation and the cells of a clause without a condition. */
  private static List<Expression> outputOf(Object instruction) {
    return instruction instanceof MergeRows.Keep keep
        && keep.condition().semanticEquals(Literal.TrueLiteral()) ? list(keep.output()) : null;
  }

  /** A value without the checks for NULL that Spark makes in it. */
  private static Expression bare(Expression value) {
    Expression found = value.mapChildren(ChangeRule::bare);
    return found instanceof AssertNotNull checked ? checked.child() : found;
  }

  private static Map<String, Attribute> named(LogicalPlan target) {
    Map<String, Attribute> found = new HashMap<>();
    list(target.output()).forEach(column -> found.put(column.name(), column));
    return found;
  }

  /** The source's expression of each key column, if they are all of the condition. */
  private static Map<String, Expression> keyOf(Join join, LogicalPlan target, StructType ids) {
    List<Expression> parts = new ArrayList<>();
    join.condition().foreach(condition -> parts.addAll(list(
        join.splitConjunctivePredicates(condition))));
    Map<String, Expression> found = new HashMap<>();
    for (Expression part : parts) {
      if (!(part instanceof EqualTo equal) || !part.deterministic()) {
        return null;
      }
      boolean isLeft = equal.left().references().subsetOf(target.outputSet());
      Expression own = isLeft ? equal.left() : equal.right();
      Expression other = isLeft ? equal.right() : equal.left();
      if (!(own instanceof AttributeReference column && target.outputSet().contains(column))
          || !other.references().subsetOf(join.right().outputSet())) {
        return null;
      }
      found.put(column.name(), other);
    }
    boolean isKey = found.keySet().equals(Set.of(ids.fieldNames()));
    return isKey && parts.size() == ids.size() ? found : null;
  }

  /** The rows of the source alone: each matches a row with its `key`, or without a key none. */
  private static LogicalPlan withTarget(
      MergeRows rows, Join join, Map<String, Attribute> own, Map<String, Expression> key) {
    LogicalPlan source = join.right();
    for (Expression part : key.values()) {
      source = new Filter(new IsNotNull(part), source);
    }
    List<NamedExpression> cells = new ArrayList<>(list(join.right().output()));
    for (Attribute column : list(join.left().output())) {
      Expression cell = Literal.create(null, column.dataType());
      if (!key.isEmpty() && column.name().equals(FROM_TARGET)) {
        cell = Literal.TrueLiteral();
      } else if (!key.isEmpty() && column.name().equals(ROW_ID)) {
        cell = new MonotonicallyIncreasingID();
      } else if (key.containsKey(column.name()) && column.equals(own.get(column.name()))) {
        cell = key.get(column.name());
      }
      cells.add(named(cell, column));
    }
    return replaced(rows, join, new Project(seq(cells), source));
  }

  private static Alias named(Expression cell, Attribute column) {
    return new Alias(cell, column.name(), column.exprId(), column.qualifier(),
        scala.Option.empty(), seq(List.of()));
  }
}
