"""The error tree: everything this product raises on purpose, each with a hint for the operator.

CompactorError
├── ConfigError                  a setting is wrong; names the field, the value and what is allowed
├── UsageError                   a command or statement cannot be understood
├── MetastoreError
│   ├── MalformedProperties      the properties of one compaction's row cannot be read
│   ├── DatabaseUnavailable      no connection, or it was lost; retrying may help
│   ├── NotInitialised           the database has no Hive transaction tables
│   ├── SchemaNotSupported       the tables are not those of a Hive that we can work beside
│   ├── ForeignDatabase          `init-db` refuses a database it did not make
│   ├── NoSuchObject             database, table or partition unknown
│   ├── AlreadyExists            database, table or partition exists
│   ├── NoSuchTransaction        transaction id unknown
│   ├── TransactionAborted       the transaction is aborted and cannot go on
│   │   ├── WriteConflict        another transaction committed a change of the same rows first
│   │   └── Deadlock             it waited for transactions that waited for it
│   ├── TooManyTransactions      no further transaction is opened until some of the open ones end
│   ├── ReplicationRefused       the transaction replays one of another cluster; that is Hive's business
│   ├── NoSuchLock               lock id unknown or its transaction is gone
│   ├── LockNotAcquired          a lock had to be free at once, or in time, and was not
│   ├── Fenced                   a guarded UPDATE found that the claim is no longer ours
│   └── CommitOutcomeUnknown     connection lost while committing: read the state back
├── StorageError
│   ├── PathNotFound             file or directory missing
│   ├── StorageReadOnly          the location cannot be written
│   ├── StorageFull              no space left
│   └── UnsafePath               a deletion outside the table's location was asked for
├── FormatError
│   ├── CorruptFile              truncated, foreign or damaged data file
│   ├── UnparsableName           a directory entry that is no ACID name
│   ├── NotEnoughHistory         the snapshot needs files that a compaction has replaced
│   └── UnsupportedData          well-formed data that this release cannot decode
│       └── BeyondArrow          values that Arrow cannot hold; ORC in the JVM can
├── VerificationError            the job's output is not what the plan promised; nothing is published
└── JobError                     Spark, or the Java below it, failed
    └── JavaNotFound             no Java to run Spark with
"""

from __future__ import annotations


class CompactorError(Exception):
    """Root of every error raised on purpose.

    message: what happened, with the names and values involved.
    hint: what the operator can do; each class below has one for a raise that knows nothing better.
    """

    default_hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class ConfigError(CompactorError):
    """A setting has a value that is not allowed."""

    default_hint = "correct the setting, then start again"


class UsageError(CompactorError):
    """A command line or SQL statement cannot be understood."""

    default_hint = "correct the command, statement or call, then repeat it"


class MetastoreError(CompactorError):
    """The metastore database refused, failed or answered something impossible."""

    default_hint = "check which other program writes to the metastore's tables"


class MalformedProperties(MetastoreError):
    """The properties of one compaction's row cannot be read; no other row is touched by that."""


class DatabaseUnavailable(MetastoreError):
    """No connection to the metastore database, or it broke off."""

    default_hint = "check COMPACTOR_DATABASE_URL and that the database accepts connections"


class NotInitialised(MetastoreError):
    """The database lacks Hive's transaction tables."""

    default_hint = "run 'compactor init-db', or point COMPACTOR_DATABASE_URL at the metastore's database"


class SchemaNotSupported(MetastoreError):
    """The metastore's tables are not those of a Hive that we can work beside."""

    default_hint = "upgrade the schema with Hive's schematool"


class ForeignDatabase(MetastoreError):
    """The database holds tables that 'compactor init-db' did not make."""

    default_hint = "choose an empty database; an existing Hive metastore needs no init-db"


class NoSuchObject(MetastoreError):
    """Database, table or partition is unknown to the catalogue."""

    default_hint = "'compactor show tables' lists what the metastore knows"


class AlreadyExists(MetastoreError):
    """Database, table or partition exists already."""

    default_hint = "choose another name, or drop what exists first"


class NoSuchTransaction(MetastoreError):
    """No such transaction id: it was never opened, or it ended and was cleaned away."""

    default_hint = "start again with a new transaction"


class TransactionAborted(MetastoreError):
    """The transaction is aborted: by a time-out, an operator or a conflict."""

    default_hint = "start again with a new transaction"


class WriteConflict(TransactionAborted):
    """Another transaction updated or deleted in the same place and committed first."""


class Deadlock(TransactionAborted):
    """Transactions waited for each other's locks in a circle, and this one, the youngest, had to give way."""

    default_hint = "run the statement again; lock tables in the same order everywhere to avoid the circle"


class TooManyTransactions(MetastoreError):
    """As many transactions are open as the installation allows."""

    default_hint = "wait until some have ended; 'compactor show transactions' lists them, txn.max_open is the limit"


class ReplicationRefused(MetastoreError):
    """A transaction that replays one of another cluster is opened, written and committed by Hive's replication only."""

    default_hint = "leave replicated transactions to Hive; a time-out ends those that are left over"


class NoSuchLock(MetastoreError):
    """The lock id is unknown; it was released or timed out."""

    default_hint = "acquire the lock again; 'compactor show locks' lists those that exist"


class LockNotAcquired(MetastoreError):
    """Another transaction holds a conflicting lock."""

    default_hint = "try again when the other transaction has ended; 'compactor show locks' lists the holders"


class Fenced(MetastoreError):
    """A guarded UPDATE changed no row: the claim was revoked, aborted or finished by someone else."""

    default_hint = "leave it: the compaction is queued again, or someone else has finished it"


class CommitOutcomeUnknown(MetastoreError):
    """The connection broke while a commit was on its way; it may have landed or not."""

    default_hint = "read the state back before repeating anything"


class StorageError(CompactorError):
    """The file system refused or failed."""

    default_hint = "check that the storage answers and what permissions the location has"


class PathNotFound(StorageError):
    """File or directory is missing."""

    default_hint = "restore the path, or drop the table or partition that points to it"


class StorageReadOnly(StorageError):
    """The location cannot be written."""

    default_hint = "the compactor needs write permission below the table's location"


class StorageFull(StorageError):
    """No space left at the location."""

    default_hint = "free space, then request the compaction again; no data file was touched"


class UnsafePath(StorageError):
    """A deletion was asked for outside the table's location, or of a name that is no ACID entry."""

    default_hint = "look at the entry by hand, and check the location of the table or partition"


class FormatError(CompactorError):
    """A file or directory is not what the ACID or ORC format says."""

    default_hint = "correct it to the form that Hive writes"


class CorruptFile(FormatError):
    """A data file is truncated, foreign or damaged."""

    default_hint = "restore the file or abort the write that made it; the compactor leaves everything in place"


class UnparsableName(FormatError):
    """A directory entry does not parse as an ACID name."""

    default_hint = "rename it as Hive would: column=value, base_N, delta_N_N"


class NotEnoughHistory(FormatError):
    """The snapshot is older than the oldest base that is left."""

    default_hint = "open a new snapshot"


class UnsupportedData(FormatError):
    """Well-formed data that this release cannot decode."""

    default_hint = "change the table or its data to a type and format that are supported"


class BeyondArrow(UnsupportedData):
    """Values that Arrow cannot hold, such as timestamps outside 1677-2262; a compaction hands them to the JVM."""

    default_hint = "compactions rewrite such values, Hive and Spark read them; pyarrow cannot"


class VerificationError(CompactorError):
    """Output and plan disagree; the output is discarded and nothing is published."""

    default_hint = "the table is unchanged; please report this with the queue row's message"


class JobError(CompactorError):
    """The Spark job failed."""

    default_hint = "look at Spark's messages in the log, then try again"


class JavaNotFound(JobError):
    """Spark needs a Java and none was found."""

    default_hint = "install a Java 17 or newer, set JAVA_HOME, or: pip install 'hive-compactor[java]'"
