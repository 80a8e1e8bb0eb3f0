package hivecompactor;

/** Something that would fail again. kind: the class of compactor.errors that the driver raises. */
public class Failure extends Exception {
  private static final long serialVersionUID = 1L;

  public final String kind;

  public Failure(String kind, String message, Throwable cause) {
    super(message, cause);
    this.kind = kind;
  }
}
