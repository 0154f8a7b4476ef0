package kudulite;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.util.Arrays;
import net.razorvine.pickle.Pickler;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonWorkerUtils;
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap$;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.*;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.execution.python.PythonPlannerRunner;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.collection.immutable.Map;

/** Runs creating the source, planning, pushing filters and committing as a Step each. */
class Planner extends UserDefinedPythonDataSource {
  private static final String SPARK = org.apache.spark.package$.MODULE$.SPARK_VERSION();

  private Planner(PythonFunction source) {
    super(source);
  }

  public PythonDataSourceCreationResult createDataSourceInPython(
      String name, CaseInsensitiveStringMap options, Option<StructType> schema) {
    return Step.run(dataSourceCls(), new UserDefinedPythonDataSourceRunner(dataSourceCls(), name,
        schema, CaseInsensitiveMap$.MODULE$.apply(Scala.map(options.asCaseSensitiveMap()))));
  }

  public Option<PythonFilterPushdownResult> pushdownFiltersInPython(
      PythonDataSourceCreationResult created, StructType schema, Filter[] filters) {
    PythonFunction source = createPythonFunction(created.dataSource());
    UserDefinedPythonDataSourceFilterPushdownRunner runner =
        new UserDefinedPythonDataSourceFilterPushdownRunner(
            source, schema, Scala.seq(Arrays.asList(filters)));
    return runner.isAnyFilterSupported() ? Option.apply(Step.run(source, runner)) : Option.empty();
  }

  public PythonDataSourceReadInfo createReadInfoInPython(
      PythonDataSourceCreationResult created, StructType schema, boolean isStreaming) {
    PythonFunction source = createPythonFunction(created.dataSource());
    return Step.run(source, new UserDefinedPythonDataSourceReadRunner(
        source, UserDefinedPythonDataSource.readInputSchema(), schema, isStreaming));
  }

  public PythonDataSourceWriteInfo createWriteInfoInPython(
      String name, StructType schema, CaseInsensitiveStringMap options, boolean overwrite,
      boolean isStreaming) {
    return Step.run(dataSourceCls(), new UserDefinedPythonDataSourceWriteRunner(dataSourceCls(),
        name, schema, Scala.map(Load.withSettings(options).asCaseSensitiveMap()), overwrite,
        isStreaming));
  }

  /** Called in tasks, which read or write. The constructor of Spark 4.1's class is another one. */
  public MapInBatchEvaluatorFactory createMapInBatchEvaluatorFactory(byte[] function, String name,
      StructType input, StructType output, Map<String, SQLMetric> metrics,
      Option<String> artifacts, Option<String> session) {
    boolean isRead = input.equals(UserDefinedPythonDataSource.readInputSchema());
    boolean isStock = isRead || SPARK.startsWith("4.1");
    MapInBatchEvaluatorFactory python = super.createMapInBatchEvaluatorFactory(function, name,
        isStock ? input : RowBatches.SCHEMA, output, metrics, artifacts, session);
    return isStock ? python : new RowBatches.Factory(python, input);
  }

  public void commitWriteInPython(
      byte[] writer, WriterCommitMessage[] messages, boolean isAborted) {
    Step.run(dataSourceCls(), new UserDefinedPythonDataSourceCommitRunner(
        dataSourceCls(), writer, messages, isAborted));
  }

  /**
   * Spark's source of the format, with this planner and the instance of a load. Spark keeps the
   * plan of a scan in its source, so each scan has its own.
   */
  static class Source extends PythonDataSourceV2 {
    private final Load load;
    private final Filter[] filters;
    private Planner planner;
    private boolean isPushed;

    Source(Load load, Filter... filters) {
      this.load = load;
      this.filters = filters;
      setShortName(DefaultSource.NAME);
    }

    public synchronized UserDefinedPythonDataSource source() {
      if (planner == null) {
        planner = new Planner(super.source().dataSourceCls());
      }
      return planner;
    }

    public PythonDataSourceCreationResult getOrCreateDataSourceInPython(
        String name, CaseInsensitiveStringMap options, Option<StructType> schema) {
      return load.created();
    }

    /** Pushes the filters, too, when a scan is first run and not to explain it. */
    public synchronized PythonDataSourceReadInfo getOrCreateReadInfo(
        String name, CaseInsensitiveStringMap options, StructType schema, boolean isStreaming) {
      if (filters.length > 0 && !isStreaming && !isPushed) {
        source().pushdownFiltersInPython(load.created(), schema, filters)
            .foreach(found -> {
              setReadInfo(found.readInfo());
              return null;
            });
        isPushed = true;
      }
      return super.getOrCreateReadInfo(name, options, schema, isStreaming);
    }
  }

  /**
   * One of Spark's steps, in a worker of the module pyspark_kudulite. Stock Spark has a module for
   * each step, and each has a daemon and a worker of its own, which imports pyspark, pyarrow and
   * kudulite again. The worker of the front is given the name of Spark's module, and calls it. The
   * modules of Spark 4.1 cannot be called so, and each runs by itself.
   */
  static class Step<T> extends PythonPlannerRunner<T> {
    private final PythonPlannerRunner<T> step;

    private Step(PythonFunction function, PythonPlannerRunner<T> step) {
      super(function);
      this.step = step;
    }

    static <T> T run(PythonFunction function, PythonPlannerRunner<T> step) {
      boolean hasDaemon = step.runInPython$default$1();
      boolean isShared = hasDaemon && !SPARK.startsWith("4.1");
      return (isShared ? new Step<>(function, step) : step).runInPython(hasDaemon);
    }

    public String workerModule() {
      return "pyspark_kudulite";
    }

    /** Not of all versions of Spark; those without it do not call this method. */
    public Map<String, String> runnerConf() {
      return step.runnerConf();
    }

    public void writeToPython(DataOutputStream out, Pickler pickler) {
      PythonWorkerUtils.writeUTF(step.workerModule(), out);
      step.writeToPython(out, pickler);
    }

    public T receiveFromPython(DataInputStream in) {
      return step.receiveFromPython(in);
    }
  }
}
