package kudulite;

import java.io.IOException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Objects;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.QueryContext;
import org.apache.spark.SparkRuntimeException;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The changes of one task, handed to the Python writer.
 *
 * Spark calls once for each changed row, whereas the Python writer takes an iterator of rows and
 * returns when it is at its end. So that one runs in a thread of its own, with the task's context,
 * and reads blocks of rows from a short queue: a task holds a few thousand rows at a time.
 *
 *     Spark's thread   insert, update, delete → block → queue → next()   the Python writer's
 *
 * Both sides wait with a limit and then look at the other, so neither waits for one that is gone.
 */
class ChangeWriter implements DeltaWriter<InternalRow> {
  private static final int BLOCK_ROWS = 1024;
  private static final int BLOCKS_MAX = 8;
  private static final long LOOK_MILLISECONDS = 100;
  private static final InternalRow[] END = new InternalRow[0];
  private static final UTF8String INSERT = UTF8String.fromString("insert");
  private static final UTF8String UPDATE = UTF8String.fromString("update");
  // Spark lets a row that a MERGE only deletes match twice.
  private static final UTF8String DELETE = UTF8String.fromString("delete_ignore");

  private final Factory factory;
  private final DataWriter<InternalRow> python;
  private final ArrayBlockingQueue<InternalRow[]> queue = new ArrayBlockingQueue<>(BLOCKS_MAX);
  private final Reader reader = new Reader();
  private final int[] places;
  private InternalRow[] block = new InternalRow[BLOCK_ROWS];
  private int count;
  private volatile boolean hasEnded;

  /** `rows` are the columns of a change, `written` those that Python gets, in the same order. */
  record Factory(DataWriterFactory python, StructType ids, StructType rows, StructType written,
      boolean isMixed) implements DeltaWriterFactory {
    public DeltaWriter<InternalRow> createWriter(int partition, long task) {
      return new ChangeWriter(this, python.createWriter(partition, task));
    }
  }

  private ChangeWriter(Factory factory, DataWriter<InternalRow> python) {
    this.factory = factory;
    this.python = python;
    places = Arrays.stream(factory.written.fieldNames())
        .mapToInt(factory.rows::fieldIndex).toArray();
    reader.start();
  }

  public void insert(InternalRow row) {
    put(cells(row), INSERT);
  }

  public void update(InternalRow metadata, InternalRow id, InternalRow row) {
    Object[] cells = cells(row);
    for (int i = 0; i < factory.ids.size(); i++) {
      if (!Objects.deepEquals(id.get(i, factory.ids.apply(i).dataType()), cells[place(i)])) {
        throw new SparkRuntimeException(Catalog.ERROR_CLASS, Catalog.errorParts("update", "column "
            + factory.ids.apply(i).name() + " is part of the primary key, which an update cannot"
            + " change; delete the row and insert another"), null, new QueryContext[0], "");
      }
    }
    put(cells, UPDATE);
  }

  public void delete(InternalRow metadata, InternalRow id) {
    Object[] cells = new Object[width()];
    InternalRow own = id.copy();
    for (int i = 0; i < factory.ids.size(); i++) {
      cells[place(i)] = own.get(i, factory.ids.apply(i).dataType());
    }
    put(cells, DELETE);
  }

  private int place(int keyColumn) {
    return factory.written.fieldIndex(factory.ids.apply(keyColumn).name());
  }

  private int width() {
    return factory.written.size() + (factory.isMixed ? 1 : 0);
  }

  /** Spark uses the object of a row again for the next one. */
  private Object[] cells(InternalRow row) {
    Object[] cells = new Object[width()];
    InternalRow own = row.copy();
    for (int i = 0; i < places.length; i++) {
      int at = places[i];
      cells[i] = own.isNullAt(at) ? null : own.get(at, factory.written.apply(i).dataType());
    }
    return cells;
  }

  private void put(Object[] cells, UTF8String operation) {
    if (factory.isMixed) {
      cells[cells.length - 1] = operation;
    }
    block[count++] = new GenericInternalRow(cells);
    if (count == BLOCK_ROWS) {
      send(block);
      block = new InternalRow[BLOCK_ROWS];
      count = 0;
    }
  }

  private void send(InternalRow[] rows) {
    try {
      while (!queue.offer(rows, LOOK_MILLISECONDS, TimeUnit.MILLISECONDS)) {
        if (!reader.isAlive()) {
          reader.raise();
        }
      }
    } catch (InterruptedException interrupted) {
      throw new IllegalStateException("the task was interrupted", interrupted);
    }
  }

  public WriterCommitMessage commit() throws IOException {
    if (count > 0) {
      send(Arrays.copyOf(block, count));
    }
    send(END);
    try {
      reader.join();
    } catch (InterruptedException interrupted) {
      throw new IllegalStateException("the task was interrupted", interrupted);
    }
    reader.raise();
    return python.commit();
  }

  public void abort() throws IOException {
    hasEnded = true;
    python.abort();
  }

  public void close() throws IOException {
    hasEnded = true;
    python.close();
  }

  /** The thread of the Python writer. */
  private class Reader extends Thread implements Iterator<InternalRow> {
    private final TaskContext context = TaskContext.get();
    private InternalRow[] rows = new InternalRow[1];
    private int next = 1;
    private volatile Throwable error;

    Reader() {
      super("kudulite changes");
      setDaemon(true);
    }

    public void run() {
      TaskContext$.MODULE$.setTaskContext(context);
      try {
        python.writeAll(this);
      } catch (Throwable thrown) {
        error = thrown;
      } finally {
        TaskContext$.MODULE$.unset();
      }
    }

    /** Throws the writer's error in the task's thread, as what it is. */
    void raise() {
      if (error != null) {
        Catalog.<RuntimeException>raise(error);
      }
    }

    public boolean hasNext() {
      try {
        while (next == rows.length && rows != END) {
          InternalRow[] found = queue.poll(LOOK_MILLISECONDS, TimeUnit.MILLISECONDS);
          if (hasEnded || context.isInterrupted() || context.isCompleted()) {
            throw new IllegalStateException("the task has ended");
          }
          if (found != null) {
            rows = found;
            next = 0;
          }
        }
      } catch (InterruptedException interrupted) {
        throw new IllegalStateException("the task was interrupted", interrupted);
      }
      return rows != END;
    }

    public InternalRow next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      return rows[next++];
    }
  }
}
