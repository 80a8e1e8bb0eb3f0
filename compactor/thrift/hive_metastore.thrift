// The calls of Hive's metastore that a compaction worker makes, and of their structs the fields that it reads or sets.
// Ids, names and types are those of Hive 4.0.1; what is left out here is skipped when it arrives. Hive never changes an
// id, so this also reads later releases.

enum TxnType { DEFAULT = 0, READ_ONLY = 2, COMPACTION = 3, SOFT_DELETE = 5, REBALANCE_COMPACTION = 6 }
enum LockType { SHARED_READ = 1, SHARED_WRITE = 2, EXCLUSIVE = 3, EXCL_WRITE = 4 }
enum LockLevel { DB = 1, TABLE = 2, PARTITION = 3 }
enum LockState { ACQUIRED = 1, WAITING = 2, ABORT = 3, NOT_ACQUIRED = 4 }
enum DataOperationType { SELECT = 1, INSERT = 2, UPDATE = 3, DELETE = 4, UNSET = 5, NO_TXN = 6 }
enum CompactionType { MINOR = 1, MAJOR = 2, REBALANCE = 3, ABORT_TXN_CLEANUP = 4 }
enum ClientCapability { TEST_CAPABILITY = 1, INSERT_ONLY_TABLES = 2 }

exception MetaException { 1: string message }
exception NoSuchObjectException { 1: string message }
exception NoSuchTxnException { 1: string message }
exception TxnAbortedException { 1: string message }
exception NoSuchLockException { 1: string message }

struct FindNextCompactRequest {
  1: optional string workerId,
  2: optional string workerVersion,
  3: optional string poolName
}

struct CompactionInfoStruct {
  1: required i64 id,
  2: required string dbname,
  3: required string tablename,
  4: optional string partitionname,
  5: required CompactionType type,
  6: optional string runas,
  7: optional string properties,
  9: optional string state,
  10: optional string workerId,
  11: optional i64 start,
  12: optional i64 highestWriteId,
  13: optional string errorMessage,
  15: optional i64 enqueueTime,
  16: optional i64 retryRetention,
  17: optional string poolname,
  18: optional i32 numberOfBuckets,
  19: optional string orderByClause
}

struct OptionalCompactionInfoStruct { 1: optional CompactionInfoStruct ci }

struct ShowCompactRequest { 1: optional i64 id, 8: optional i64 limit }

struct ShowCompactResponseElement {
  1: required string dbname,
  2: required string tablename,
  3: optional string partitionname,
  5: required string state,
  6: optional string workerid,
  13: optional i64 id,
  17: optional string initiatorId,
  18: optional string initiatorVersion,
  21: optional i64 nextTxnId,
  22: optional i64 txnId
}

struct ShowCompactResponse { 1: required list<ShowCompactResponseElement> compacts }

struct CompactionRequest {
  1: required string dbname,
  2: required string tablename,
  3: optional string partitionname,
  4: required CompactionType type,
  5: optional string runas,
  6: optional map<string, string> properties,
  7: optional string initiatorId,
  8: optional string initiatorVersion,
  9: optional string poolName,
  10: optional i32 numberOfBuckets,
  11: optional string orderByClause
}

struct CompactionResponse {
  1: required i64 id,
  2: required string state,
  3: required bool accepted,
  4: optional string errormessage
}

struct OpenTxnRequest {
  1: required i32 num_txns,
  2: required string user,
  3: required string hostname,
  4: optional string agentInfo,
  7: optional TxnType txn_type
}

struct OpenTxnsResponse { 1: required list<i64> txn_ids }

struct CommitTxnRequest { 1: required i64 txnid, 6: optional bool exclWriteEnabled }

struct AbortTxnRequest { 1: required i64 txnid, 4: optional i64 errorCode }

struct HeartbeatRequest { 1: optional i64 lockid, 2: optional i64 txnid }

struct GetOpenTxnsResponse {
  1: required i64 txn_high_water_mark,
  2: required list<i64> open_txns,
  3: optional i64 min_open_txn,
  4: required binary abortedBits
}

struct GetValidWriteIdsRequest { 1: required list<string> fullTableNames, 2: optional string validTxnList }

struct TableValidWriteIds {
  1: required string fullTableName,
  2: required i64 writeIdHighWaterMark,
  3: required list<i64> invalidWriteIds,
  4: optional i64 minOpenWriteId,
  5: required binary abortedBits
}

struct GetValidWriteIdsResponse { 1: required list<TableValidWriteIds> tblValidWriteIds }

struct LockComponent {
  1: required LockType type,
  2: required LockLevel level,
  3: required string dbname,
  4: optional string tablename,
  5: optional string partitionname,
  6: optional DataOperationType operationType,
  7: optional bool isTransactional,
  8: optional bool isDynamicPartitionWrite
}

struct LockRequest {
  1: required list<LockComponent> component,
  2: optional i64 txnid,
  3: required string user,
  4: required string hostname,
  5: optional string agentInfo
}

struct LockResponse { 1: required i64 lockid, 2: required LockState state, 3: optional string errorMessage }

struct FieldSchema { 1: string name, 2: string type, 3: string comment }

struct SerDeInfo { 1: string name, 2: string serializationLib }

struct Order { 1: string col, 2: i32 order }

struct StorageDescriptor {
  1: list<FieldSchema> cols,
  2: string location,
  3: string inputFormat,
  4: string outputFormat,
  6: i32 numBuckets,
  7: SerDeInfo serdeInfo,
  8: list<string> bucketCols,
  9: list<Order> sortCols
}

struct Table {
  1: string tableName,
  2: string dbName,
  3: string owner,
  7: StorageDescriptor sd,
  8: list<FieldSchema> partitionKeys,
  9: map<string, string> parameters,
  12: string tableType,
  25: optional i64 id
}

struct ClientCapabilities { 1: required list<ClientCapability> values }

struct GetTableRequest {
  1: required string dbName,
  2: required string tblName,
  3: optional ClientCapabilities capabilities,
  4: optional string catName,
  8: optional list<string> processorCapabilities,
  9: optional string processorIdentifier
}

struct GetTableResult { 1: required Table table }

struct Partition {
  1: list<string> values,
  2: string dbName,
  3: string tableName,
  6: StorageDescriptor sd,
  7: map<string, string> parameters
}

service ThriftHiveMetastore {
  i32 getStatus()

  GetTableResult get_table_req(1: GetTableRequest req) throws (1: MetaException o1, 2: NoSuchObjectException o2)
  Partition get_partition_by_name(1: string db_name, 2: string tbl_name, 3: string part_name)
    throws (1: MetaException o1, 2: NoSuchObjectException o2)

  GetOpenTxnsResponse get_open_txns()
  GetValidWriteIdsResponse get_valid_write_ids(1: GetValidWriteIdsRequest rqst)
    throws (1: NoSuchTxnException o1, 2: MetaException o2)
  OpenTxnsResponse open_txns(1: OpenTxnRequest rqst)
  void commit_txn(1: CommitTxnRequest rqst) throws (1: NoSuchTxnException o1, 2: TxnAbortedException o2)
  void abort_txn(1: AbortTxnRequest rqst) throws (1: NoSuchTxnException o1)
  LockResponse lock(1: LockRequest rqst) throws (1: NoSuchTxnException o1, 2: TxnAbortedException o2)
  void heartbeat(1: HeartbeatRequest ids)
    throws (1: NoSuchLockException o1, 2: NoSuchTxnException o2, 3: TxnAbortedException o3)

  CompactionResponse compact2(1: CompactionRequest rqst)
  ShowCompactResponse show_compact(1: ShowCompactRequest rqst)
  OptionalCompactionInfoStruct find_next_compact2(1: FindNextCompactRequest rqst) throws (1: MetaException o1)
  void update_compactor_state(1: CompactionInfoStruct cr, 2: i64 txn_id)
  void mark_compacted(1: CompactionInfoStruct cr) throws (1: MetaException o1)
  void mark_refused(1: CompactionInfoStruct cr) throws (1: MetaException o1)
  void mark_failed(1: CompactionInfoStruct cr) throws (1: MetaException o1)
  void set_hadoop_jobid(1: string jobId, 2: i64 cq_id)
}
