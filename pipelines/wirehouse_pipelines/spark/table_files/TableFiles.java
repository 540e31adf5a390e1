package wirehouse;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.parquet.HadoopReadOptions;
import org.apache.parquet.ParquetReadOptions;
import org.apache.parquet.column.statistics.Statistics;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.metadata.BlockMetaData;
import org.apache.parquet.hadoop.metadata.ColumnChunkMetaData;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.schema.LogicalTypeAnnotation;
import org.apache.parquet.schema.PrimitiveType;
import org.apache.spark.internal.io.FileCommitProtocol;
import org.apache.spark.internal.io.FileNameSpec;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * A commit protocol by which Spark's tasks write Parquet files to their final place under unique names. {@link #take}
 * returns a description of each file. No file is part of a table before its caller commits it in the table's log.
 */
public class TableFiles extends FileCommitProtocol implements Serializable {
    private static final ConcurrentHashMap WRITTEN = new ConcurrentHashMap();
    private static final ObjectMapper JSON = new ObjectMapper();
    /** Longer texts are no bounds of a column: they would be repeated in each reading of the log. */
    private static final int LONGEST_BOUND = 128;

    private final String folder;
    private transient List files;

    public TableFiles(String job, String folder, boolean dynamicPartitionOverwrite) {
        super();
        this.folder = folder;
    }

    /** What the last job wrote below the folder, once: of each file an object in JSON. */
    public static List take(String folder) {
        Object written = WRITTEN.remove(keyOf(folder));
        return written == null ? new ArrayList() : (List) written;
    }

    private static String keyOf(String folder) {
        java.net.URI place = new Path(folder).toUri();
        return place.getAuthority() + place.getPath();
    }

    @Override
    public void setupJob(JobContext context) {}

    @Override
    public void commitJob(JobContext context, Seq messages) {
        List written = new ArrayList();
        scala.collection.Iterator each = messages.iterator();
        while (each.hasNext()) {
            written.addAll((List) ((FileCommitProtocol.TaskCommitMessage) each.next()).obj());
        }
        WRITTEN.put(keyOf(folder), written);
    }

    @Override
    public void abortJob(JobContext context) {}

    @Override
    public void setupTask(TaskAttemptContext context) {
        files = new ArrayList();
    }

    @Override
    public String newTaskTempFile(TaskAttemptContext context, Option partition, FileNameSpec name) {
        int task = context.getTaskAttemptID().getTaskID().getId();
        String file = name.prefix() + String.format("part-%05d-", new Object[] {Integer.valueOf(task)}) + UUID.randomUUID()
            + name.suffix();
        files.add(partition.isEmpty() ? file : partition.get() + "/" + file);
        return new Path(folder, (String) files.get(files.size() - 1)).toString();
    }

    @Override
    public FileCommitProtocol.TaskCommitMessage commitTask(TaskAttemptContext context) {
        List told = new ArrayList();
        try {
            for (Iterator each = files.iterator(); each.hasNext();) {
                told.add(describe((String) each.next(), context.getConfiguration()));
            }
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
        return new FileCommitProtocol.TaskCommitMessage(told);
    }

    @Override
    public void abortTask(TaskAttemptContext context) {
        for (Iterator each = files.iterator(); each.hasNext();) {
            Path path = new Path(folder, (String) each.next());
            try {
                path.getFileSystem(context.getConfiguration()).delete(path, false);
            } catch (IOException error) {
                // No table names it: VACUUM removes it later.
            }
        }
    }

    private String describe(String file, Configuration configuration) throws IOException {
        Path path = new Path(folder, file);
        FileStatus status = path.getFileSystem(configuration).getFileStatus(path);
        Map told = new TreeMap();
        told.put("path", file);
        told.put("size", Long.valueOf(status.getLen()));
        told.put("modified", Long.valueOf(status.getModificationTime()));
        // Without options the reader would load the configuration of Hadoop anew for each file.
        ParquetReadOptions options = HadoopReadOptions.builder(configuration, path).build();
        ParquetFileReader reader = ParquetFileReader.open(HadoopInputFile.fromStatus(status, configuration), options);
        try {
            told.put("stats", bounds(reader.getFooter().getBlocks()));
        } finally {
            reader.close();
        }
        return JSON.writeValueAsString(told);
    }

    /** Statistics as Delta keeps them, of columns that are numbers or texts. */
    private static Map bounds(List blocks) {
        long records = 0;
        Map least = new TreeMap();
        Map most = new TreeMap();
        Map nulls = new TreeMap();
        java.util.Set unknown = new java.util.TreeSet();
        for (Iterator each = blocks.iterator(); each.hasNext();) {
            BlockMetaData block = (BlockMetaData) each.next();
            records += block.getRowCount();
            for (Iterator columns = block.getColumns().iterator(); columns.hasNext();) {
                ColumnChunkMetaData column = (ColumnChunkMetaData) columns.next();
                Statistics statistics = column.getStatistics();
                if (column.getPath().size() != 1) {
                    continue;
                }
                String name = column.getPath().toArray()[0];
                if (statistics == null || !statistics.isNumNullsSet()) {
                    unknown.add(name);
                    continue;
                }
                add(nulls, name, statistics.getNumNulls());
                if (statistics.getNumNulls() == column.getValueCount()) {
                    continue;
                }
                Comparable first = null;
                Comparable last = null;
                if (statistics.hasNonNullValue()) {
                    first = value(statistics.genericGetMin(), column.getPrimitiveType());
                    last = value(statistics.genericGetMax(), column.getPrimitiveType());
                }
                if (first == null || last == null) {
                    unknown.add(name);
                    continue;
                }
                if (!least.containsKey(name) || first.compareTo(least.get(name)) < 0) {
                    least.put(name, first);
                }
                if (!most.containsKey(name) || last.compareTo(most.get(name)) > 0) {
                    most.put(name, last);
                }
            }
        }
        least.keySet().removeAll(unknown);
        most.keySet().removeAll(unknown);
        Map told = new TreeMap();
        told.put("numRecords", Long.valueOf(records));
        told.put("minValues", least);
        told.put("maxValues", most);
        told.put("nullCount", nulls);
        return told;
    }

    private static void add(Map counts, String name, long count) {
        Long before = (Long) counts.get(name);
        counts.put(name, Long.valueOf(before == null ? count : before.longValue() + count));
    }

    /** A bound of a column; null for columns of other types, and for long texts. */
    private static Comparable value(Object bound, PrimitiveType type) {
        LogicalTypeAnnotation kind = type.getLogicalTypeAnnotation();
        if (kind == null) {
            boolean whole = bound instanceof Integer || bound instanceof Long;
            return whole ? (Comparable) Long.valueOf(((Number) bound).longValue()) : null;
        }
        if (kind instanceof LogicalTypeAnnotation.DecimalLogicalTypeAnnotation) {
            int scale = ((LogicalTypeAnnotation.DecimalLogicalTypeAnnotation) kind).getScale();
            BigInteger digits = bound instanceof Binary
                ? new BigInteger(((Binary) bound).getBytes())
                : BigInteger.valueOf(((Number) bound).longValue());
            return new BigDecimal(digits, scale);
        }
        if (kind instanceof LogicalTypeAnnotation.StringLogicalTypeAnnotation) {
            Binary text = (Binary) bound;
            return text.length() > LONGEST_BOUND ? null : text.toStringUsingUTF8();
        }
        return null;
    }
}
