package wirehouse;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import software.amazon.awssdk.awscore.exception.AwsServiceException;

/**
 * Delta's log store for S3 that never loses a commit: it creates each version of the log by a conditional put, so the
 * store refuses all but one of several writers, whatever processes they are in. Delta's own store for S3 coordinates
 * only the writers of one JVM.
 */
public class ConditionalLogStore extends HadoopFileSystemLogStore {
    private static final String ONLY_IF_NEW = "fs.option.create.conditional.overwrite";

    public ConditionalLogStore(Configuration hadoopConf) {
        super(hadoopConf);
    }

    @Override
    public void write(Path path, Iterator actions, Boolean overwrite, Configuration hadoopConf) throws IOException {
        // All of it at hand before the upload begins: closing a stream that failed half-way would end the upload.
        StringBuilder text = new StringBuilder();
        while (actions.hasNext()) {
            text.append((String) actions.next()).append('\n');
        }
        byte[] bytes = text.toString().getBytes(StandardCharsets.UTF_8);
        FileSystem fileSystem = path.getFileSystem(hadoopConf);
        FSDataOutputStreamBuilder builder = fileSystem.createFile(path);
        builder.overwrite(true);
        builder.recursive();
        if (!overwrite.booleanValue()) {
            builder.must(ONLY_IF_NEW, true);
        }
        try {
            OutputStream stream = (OutputStream) builder.build();
            stream.write(bytes);
            stream.close();
        } catch (IOException refused) {
            if (isTaken(refused)) {
                throw new FileAlreadyExistsException(path.toString());
            }
            throw refused;
        }
    }

    /** The store said that the version exists (412), or that another is just being written (409). */
    private static boolean isTaken(Throwable refused) {
        if (refused instanceof org.apache.hadoop.fs.FileAlreadyExistsException) {
            return true;
        }
        for (Throwable cause = refused; cause != null; cause = cause.getCause()) {
            if (cause instanceof AwsServiceException) {
                int status = ((AwsServiceException) cause).statusCode();
                return status == 412 || status == 409;
            }
        }
        return false;
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
        return Boolean.FALSE;
    }
}
