package kudulite;

import java.lang.reflect.Field;
import org.apache.spark.sql.execution.vectorized.Dictionary;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatchRow;

/**
 * The changed cells of one column of a base file: ascending positions in the file, and values,
 * which begin at `first` in a vector of the cells of all files.
 *
 * They are written into the vectors of Spark's reader, which it fills anew for each batch. A vector
 * with a dictionary has numbers in place of values: it gets a dictionary that also knows the cells.
 */
record ChangedCells(int[] positions, WritableColumnVector values, int first) {
  private static final Field DICTIONARY = BaseFiles.field(WritableColumnVector.class, "dictionary");
  private static final int NEW = 1 << 30;  // the number of the first cell; Parquet has fewer values

  /** The cell of a place in `positions`, as a row of one column. */
  ColumnarBatchRow row(int place) {
    ColumnarBatchRow row = new ColumnarBatchRow(new ColumnVector[] {values});
    row.rowId = first + place;
    return row;
  }

  /** Writes the cell of a place in `positions` into a row of a batch. */
  void put(WritableColumnVector to, int row, int place) {
    int from = first + place;
    if (values.isNullAt(from)) {
      to.putNull(row);
      return;
    }
    to.putNotNull(row);
    DataType type = to.dataType();
    if (to.hasDictionary()) {
      addTo(to);
      to.getDictionaryIds().putInt(row, NEW + from);
    } else if (type.equals(DataTypes.BooleanType)) {
      to.putBoolean(row, values.getBoolean(from));
    } else if (type.equals(DataTypes.ByteType)) {
      to.putByte(row, values.getByte(from));
    } else if (type.equals(DataTypes.ShortType)) {
      to.putShort(row, values.getShort(from));
    } else if (type.equals(DataTypes.FloatType)) {
      to.putFloat(row, values.getFloat(from));
    } else if (type.equals(DataTypes.DoubleType)) {
      to.putDouble(row, values.getDouble(from));
    } else if (type.equals(DataTypes.IntegerType) || type.equals(DataTypes.DateType)
        || DecimalType.is32BitDecimalType(type)) {
      to.putInt(row, values.getInt(from));
    } else if (type.equals(DataTypes.StringType) || type.equals(DataTypes.BinaryType)
        || DecimalType.isByteArrayDecimalType(type)) {
      to.putByteArray(row, values.getBinary(from));
    } else {
      to.putLong(row, values.getLong(from));
    }
  }

  private void addTo(WritableColumnVector vector) {
    try {
      Dictionary stored = (Dictionary) DICTIONARY.get(vector);
      if (!(stored instanceof WithCells)) {
        vector.setDictionary(new WithCells(stored));
      }
    } catch (IllegalAccessException error) {
      throw new IllegalStateException(error);
    }
  }

  private class WithCells implements Dictionary {
    private final Dictionary stored;

    WithCells(Dictionary stored) {
      this.stored = stored;
    }

    public int decodeToInt(int number) {
      if (number < NEW) {
        return stored.decodeToInt(number);
      }
      DataType type = values.dataType();
      return type.equals(DataTypes.ByteType) ? values.getByte(number - NEW)
          : type.equals(DataTypes.ShortType) ? values.getShort(number - NEW)
          : values.getInt(number - NEW);
    }

    public long decodeToLong(int number) {
      return number < NEW ? stored.decodeToLong(number) : values.getLong(number - NEW);
    }

    public float decodeToFloat(int number) {
      return number < NEW ? stored.decodeToFloat(number) : values.getFloat(number - NEW);
    }

    public double decodeToDouble(int number) {
      return number < NEW ? stored.decodeToDouble(number) : values.getDouble(number - NEW);
    }

    public byte[] decodeToBinary(int number) {
      return number < NEW ? stored.decodeToBinary(number) : values.getBinary(number - NEW);
    }
  }
}
