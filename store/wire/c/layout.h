/* Sizes, marks and structures: of requests, of what is made of them, of rows and of pages. */

#define MAX_DIGITS 9           /* of a length */
#define MIN_WORD_BYTES 6      /* "$0\r\n\r\n" */
#define MIN_XADD_WORDS 5      /* XADD key id field value */
#define XACK_WORDS 4            /* XACK key group id */
#define ACK_REPLY_BYTES 4       /* ":1\r\n" */
#define XCLAIM_WORDS 7          /* XCLAIM key group consumer min-idle-time id JUSTID */
#define CLAIM_NAMES 4           /* the words between XCLAIM and the ID */
#define XRANGE_WORDS 6          /* XRANGE key start end COUNT 1 */
#define CLAIMED_HEAD_BYTES 4    /* "*1\r\n" in front of an ID, "*0\r\n" without one */
#define MAX_TRIMMED 256         /* by one tail: to delete their rows takes a quarter of a millisecond */
#define TRIMMED_BYTES 64        /* that an entry to be removed counts as */
#define RUN_ENTRIES 256         /* as many make one run at most; they are noted on the stack first */
#define MOST_CLAIMS 128         /* as many are executed together at most: some take 8 us each */
#define MOST_RANGES 128         /* that are executed together at most: of streams that are not in memory some take 5 us each */
#define TAILS_AT_ONCE 8         /* that are looked for, also when the first of them ends the appending */
#define CACHE_LINE_BYTES 64     /* of the processor */
#define MOST_FETCHED 512        /* bytes of the rows of a stream: what follows is fetched by the processor itself */
#define FETCHED_AHEAD 8         /* streams of many, while the number of one is read */
#define STREAM_OBJECT_BYTES 256 /* the row of a stream as an object of Python */
#define HALF_DIGITS 20          /* of 64 bits */
#define ID_TEXT_BYTES (2 * HALF_DIGITS + 1)
#define ID_BULK_BYTES (ID_TEXT_BYTES + 7)       /* "$41\r\n" and "\r\n" */
#define MORE_LOG_BYTES (ID_BULK_BYTES + 8)      /* that a line of the log has more than its request at most */
#define HEAD_BYTES 32           /* "*", a Py_ssize_t, "\r\n" */
#define PREFIX_BYTES 8          /* of the key of a row: the stream's number, then both halves of the ID */
#define HALF_BYTES 8
#define ID_BYTES (2 * HALF_BYTES)
#define KEY_BYTES (PREFIX_BYTES + ID_BYTES)
#define MIN_ROOM 512            /* of a buffer */
#define RUN_MOMENT_AT 4         /* a run of pending entries: consumer_no:u32 moment:u64 delivery_count:u64 */
#define RUN_COUNT_AT 12
#define RUN_HEAD_BYTES 20       /* then the IDs */
#define TURN_AT 48              /* in a moment: the turn, over the delivery time; without an owner it is a release_no */
#define TURN_BYTES 2
#define CHECKSUM_BYTES 4        /* behind a run; those of format version 2 have none */
#define SEAL_BYTES 5            /* behind the row of an entry: CRC-32C of the stream's number and the row, and the mark */
#define SEAL_MARK '\1'
#define ROW_MARK '\xc1'          /* in front of the row of a stream, then CRC-32C of its key and what follows: msgpack */
#define ROW_HEAD_BYTES 5
#define STREAM_ARRAY '\x99'      /* msgpack: of nine values, of four; nil, bytes, the largest number without a kind */
#define NODES_ARRAY '\x94'
#define NIL '\xc0'
#define BIN8 '\xc4'
#define UINT8_KIND 0xcc         /* then the kinds of numbers with two, four and eight bytes */
#define MAX_FIXINT 0x7f
#define MAX_COUNT (PY_SSIZE_T_MAX / 2)  /* of what a stream has; as many can be added */
#define STREAM_IDS_BYTES 112    /* seven IDs */
#define MAX_STREAM_BYTES 204    /* of a row: nine numbers of nine bytes, the IDs and eleven bytes */
#define STREAM_VALUES 18        /* of a row in Python; the IDs begin there */
#define FIRST_ID_AT 5
#define PAGE_HEAD_BYTES 16      /* of LMDB 0.9: pgno:u64 pad:u16 flags:u16 lower:u16 upper:u16, then where rows begin */
#define NODE_HEAD_BYTES 8       /* before a row: its size:u32 flags:u16 size of its key:u16 */
#define BRANCH 1                /* the flags of a page, and of a row of the main table that is the head of a table */
#define LEAF 2
#define TABLE 2
#define META_AT PAGE_HEAD_BYTES /* in the first two pages: magic:u32 version:u32 address:u64 size:u64, two tables, then */
#define META_TABLES_AT (META_AT + 24)   /* last_pgno:u64 commit_no:u64; the first table's head has the size of pages */
#define TABLE_BYTES 48          /* pad:u32 flags:u16 depth:u16, four counts, root:u64 */
#define META_BYTES (META_TABLES_AT + 2 * TABLE_BYTES + 16)
#define META_MAGIC 0xbeefc0de
#define META_VERSION 1
#define MIN_PAGE_BYTES 512
#define MAX_PAGE_BYTES 65536
#define MOST_LEVELS 32          /* of a tree */
#define SEARCHES_AT_ONCE 64     /* that wait for memory together: more pages leave the nearest cache before their turn */

/* What may become a run. */
/* `XADD key [options] *|id ...`, from clients; `XADD key [MAXLEN = n] id ...`, out of a log */
enum { NO_RUNS, APPENDED, LOGGED };

/* What an XADD trims by. */
enum { NO_TRIM, MAXLEN, MINID };

typedef struct {
    uint64_t ms, seq;
} ID;

/* One XADD: where its head, key, ID, first field and the byte behind its last value stand in the chunk; its options. */
typedef struct {
    Py_ssize_t start, key, key_length, id, fields, end;
    Py_ssize_t word_count;      /* fields and values */
    ID wanted;                  /* unless `is_auto` */
    ID threshold;               /* of the trim; MAXLEN's is `seq` */
    char is_auto, trim, is_approximate;
} Entry;

typedef struct {
    PyObject_VAR_HEAD           /* the size is the number of entries */
    PyObject *chunk;
    Entry entries[1];
} Run;

/* One XACK of one entry: where it and the word of its ID stand in the chunk; the XADDs before it. */
typedef struct {
    Py_ssize_t start, id_word, end;
    Py_ssize_t before;
    ID id;
} Ack;

/* XADDs, and XACKs of one group of one stream. */
typedef struct {
    PyObject_VAR_HEAD           /* the size is the number of XACKs */
    PyObject *chunk;
    Run *adds;                  /* NULL when there is none */
    Py_ssize_t key, key_length, group, group_length;
    Ack acks[1];
} Mix;

/* One XCLAIM of one entry: where it and the word of its ID stand in the chunk, and the byte behind that word. */
typedef struct {
    Py_ssize_t start, id_word, id_end, end;
    ID id;
} Claim;

/* XCLAIMs with JUSTID, of one entry each, whose other words are the same. */
typedef struct {
    PyObject_VAR_HEAD           /* the size is the number of XCLAIMs */
    PyObject *chunk;
    Py_ssize_t names[CLAIM_NAMES], lengths[CLAIM_NAMES];        /* where the other words stand in the chunk */
    Claim claims[1];
} Claims;

/* One XRANGE of one entry: where it and its key stand in the chunk, and the IDs from and up to which it asks. */
typedef struct {
    Py_ssize_t start, key, key_length, end;
    ID low, high;
} Range;

/* XRANGEs of one entry each, of any keys. */
typedef struct {
    PyObject_VAR_HEAD           /* the size is the number of XRANGEs */
    PyObject *chunk;
    Range ranges[1];
} Ranges;

/* Bytes that are appended to; they grow as needed. */
typedef struct {
    char *data;
    size_t size, room;
} Buffer;

/* A row of the table of entries in a buffer; the bytes of the row follow.  As Python objects waiting rows would take
   three times the memory, which has left the processor's cache when they are put into the table. */
typedef struct {
    ID id;
    Py_ssize_t size;
} RowHead;

/* Rows of one stream in a buffer. */
typedef struct {
    Buffer rows;
    char prefix[PREFIX_BYTES];
} StreamRows;

/* Rows that leave the buffers of some streams one by one. */
typedef struct {
    PyObject_VAR_HEAD           /* the size is the number of streams */
    Py_ssize_t stream;          /* whose rows leave now */
    size_t at;
    StreamRows streams[1];
} Rows;

/* What may be appended to a stream, and what was: `reference/` says more. */
typedef struct {
    PyObject_HEAD
    Buffer rows;                /* that were not taken */
    char prefix[PREFIX_BYTES];
    ID first;                   /* of the open node */
    ID last;                    /* of the stream */
    ID oldest, node_end;        /* an exact trim by MINID, and an approximate one, removes nothing up to here */
    Py_ssize_t length;          /* of the stream */
    Py_ssize_t node_live;       /* entries that an approximate trim by MAXLEN removes at least */
    Py_ssize_t most, room;      /* entries and bytes that the open node takes */
    Py_ssize_t max_entries, max_bytes, nodes_left;      /* of further nodes */
    Py_ssize_t count, size;     /* entries and bytes that the open node has taken */
    Py_ssize_t rows_size;       /* bytes of the rows that were not taken, with their keys */
    Py_ssize_t trimmed;         /* entries to be removed from the front */
    PyObject *closed;           /* (count, size, first ID, last ID) of the nodes before, NULL for none */
    PyObject *key, *row;        /* of the stream, when it was opened by its row; else NULL */
} Tail;

typedef struct {
    PyTypeObject *run_type, *mix_type, *claims_type, *ranges_type, *tail_type, *rows_type;
} State;
