package hivecompactor;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFileSystem;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.security.AccessControlException;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.Function;
import org.apache.spark.util.SerializableConfiguration;

/**
 * One output file, written by a Spark task on an executor: a JSON object in, a JSON object out.
 *
 * <p>The output appears under its name as a whole or not at all. What would fail again is answered as
 * {@code {"error": class of compactor.errors, "message": …}}, so that Spark does not try it again. Compiled by
 * Janino, hence without lambdas and type arguments.
 */
public abstract class Task implements Function {
  private static final long serialVersionUID = 1L;

  private final SerializableConfiguration configuration;

  protected Task(SerializableConfiguration configuration) {
    this.configuration = configuration;
  }

  /** Write the file that {@code spec} asks for; put what the driver wants to know into {@code answer}. */
  protected abstract void run(JsonNode spec, ObjectNode answer) throws Exception;

  @Override
  public Object call(Object spec) throws Exception {
    ObjectMapper mapper = new ObjectMapper();
    ObjectNode answer = mapper.createObjectNode();
    try {
      run(mapper.readTree((String) spec), answer);
    } catch (Failure failure) {
      checkNotCancelled();
      answer.put("error", failure.kind).put("message", failure.getMessage());
    } catch (RuntimeException error) {
      checkNotCancelled();
      answer.put("error", "JobError").put("message", String.valueOf(error));
    } catch (LinkageError missing) {
      answer.put("error", "UnsupportedData").put("message", "the executors' Spark lacks a library: " + missing);
    }
    return mapper.writeValueAsString(answer);
  }

  protected Configuration configuration() {
    return configuration.value();
  }

  /** The file system of a path; a local one without the checksum files that Hadoop would leave beside the data. */
  protected FileSystem fileSystem(Path path) throws Failure {
    try {
      FileSystem fs = path.getFileSystem(configuration());
      return fs instanceof ChecksumFileSystem ? ((ChecksumFileSystem) fs).getRawFileSystem() : fs;
    } catch (IOException error) {
      throw new Failure("StorageError", path + ": " + error, error);
    }
  }

  /** A new name beside {@code output} that readers ignore. */
  protected static Path temporary(Path output) {
    return new Path(output.getParent(), "_tmp." + output.getName() + "." + UUID.randomUUID().toString().replace("-", ""));
  }

  /**
   * Give a complete file its name. Another attempt of this task may have been faster: its file has the same content.
   */
  protected void publish(FileSystem fs, Path written, Path output) throws Failure {
    try {
      if (fs instanceof RawLocalFileSystem) {
        sync(written);
      }
      if (!rename(fs, written, output)) {
        if (!fs.exists(output)) {
          throw new Failure("StorageError", output + ": " + written.getName() + " could not be renamed", null);
        }
        fs.delete(written, false);
      }
      if (fs instanceof RawLocalFileSystem) {
        sync(output.getParent());
      }
    } catch (IOException error) {
      throw writing(output, error);
    }
  }

  /** Whether the file has its name now; some file systems return false where it exists, others throw. */
  private static boolean rename(FileSystem fs, Path from, Path to) throws IOException {
    try {
      return fs.rename(from, to);
    } catch (FileAlreadyExistsException error) {
      return false;
    }
  }

  /** Force a local file or directory to disk; other file systems acknowledge only what is safe. */
  private static void sync(Path path) throws IOException {
    OpenOption[] options = new OpenOption[] {StandardOpenOption.READ};
    FileChannel channel = FileChannel.open(Paths.get(path.toUri().getPath(), new String[0]), options);
    try {
      channel.force(true);
    } finally {
      channel.close();
    }
  }

  protected static FSDataOutputStream create(FileSystem fs, Path path) throws Failure {
    try {
      return fs.create(path, true);
    } catch (IOException error) {
      throw writing(path, error);
    }
  }

  /** Remove what an unfinished attempt wrote; the error that ended it matters more than this one. */
  protected static void discard(FileSystem fs, Path path) {
    try {
      fs.delete(path, false);
    } catch (IOException ignored) {
      // The name begins with '_': no reader sees it, and it goes with the directory.
    }
  }

  protected static void checkNotCancelled() {
    TaskContext context = TaskContext.get();
    if (context != null) {
      context.killTaskIfInterrupted();
    }
  }

  /** What an exception while reading {@code path} means. */
  protected static Failure reading(Object path, Throwable error) {
    if (error instanceof Failure) {
      return (Failure) error;
    }
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof FileNotFoundException) {
        return new Failure("PathNotFound", path + " does not exist", error);
      }
      if (cause instanceof AccessControlException) {
        return new Failure("StorageError", "no permission for " + path + ": " + cause.getMessage(), error);
      }
      if (cause instanceof java.net.SocketException || cause instanceof java.net.UnknownHostException) {
        return new Failure("StorageError", path + ": " + cause, error);
      }
      String text = String.valueOf(cause.getMessage());
      if (cause instanceof ClassNotFoundException || text.matches("native \\w+ library not available.*")) {
        return new Failure("UnsupportedData", path + " needs what the executors' Spark lacks: " + text, error);
      }
      if (cause instanceof UnsupportedOperationException) {
        return new Failure("UnsupportedData", path + ": " + cause.getMessage(), error);
      }
    }
    return new Failure("CorruptFile", path + " cannot be read: " + rootCause(error), error);
  }

  /** What an exception while writing {@code path} means. */
  protected static Failure writing(Object path, Throwable error) {
    if (error instanceof Failure) {
      return (Failure) error;
    }
    Throwable root = rootCause(error);
    String text = String.valueOf(root.getMessage());
    if (text.contains("No space left") || text.contains("quota")) {
      return new Failure("StorageFull", "no space left writing " + path, error);
    }
    if (root instanceof AccessControlException || text.contains("Permission denied") || text.contains("Read-only")) {
      return new Failure("StorageReadOnly", "no permission for " + path + ": " + text, error);
    }
    return new Failure("StorageError", path + ": " + root, error);
  }

  private static Throwable rootCause(Throwable error) {
    Throwable root = error;
    while (root.getCause() != null) {
      root = root.getCause();
    }
    return root;
  }
}
