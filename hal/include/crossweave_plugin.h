/* crossweave_plugin.h - Crossweave plugin ABI, major 1. C11 and C++17. This file and crossweave_ops.h are all a vendor needs.
 *
 * R1 Every struct starts with `size` (bytes the writer knows). Tables: the reader copies min(size, its own sizeof)
 *    over zeros, once, at load time. Per-call descriptors: the same, but a longer one whose unknown tail is not all
 *    zero is CW_E_UNSUPPORTED, so a new meaning is never dropped. Zero/NULL always means "default"/"not provided".
 *    Out structs: the caller sets `size` before the call; never write more than that. Elements of an array of such
 *    structs lie the `size` of the first apart, so that they may grow; structs without a size, and structs that lie in
 *    others, never grow.
 * R2 Append only: a shipped field never moves, never changes type, never changes the type it points at.
 * R3 No C enums, bools, bit-fields, varargs or `long` cross the boundary. Unknown values are legal input.
 * R4 Neither side frees the other's memory. Errors, names and lists go into caller-owned storage.
 * R5 No unwinding or longjmp across any of these functions, in either direction.
 * R6 CW_E_UNSUPPORTED has no side effects: the host may always retry by another route.
 * R7 Every function may be called from any thread and leaves the thread's vendor state (current device) as it
 *    was. Calls on one stream, event, op or comm are serialised by the host; devices and mems are shared.
 *    *_query, *_info, comm_abort and comm_async_error may race with anything.
 * R8 Functions taking a stream return after enqueue. Host arrays passed in are copied before return;
 *    memory named by cw_span stays alive until the stream has passed the call.
 * R9 Host services and tables live until the process ends. The entry may be called again (a second host in one
 *    process): it answers again and keeps the first host's services.
 *
 * Each function states, where it is not obvious: what it does; who checks what; whether it may block; its errors; and
 * "kit:", the groups of `crossweave conform` that test it. Common to all: a NULL handle or out pointer is CW_E_INVALID;
 * the error record may be NULL and is written only when the status is negative; a destroy function takes NULL and does
 * nothing; a function without a timeout does not block; after CW_E_DEVICE_LOST every call on the device says so again.
 * The host checks: handles are live and of this plugin, spans lie inside their memory, operands do not overlap unless
 * the op allows it. The plugin checks everything else. Layout is that of 64-bit little-endian systems. */
#ifndef CROSSWEAVE_PLUGIN_H
#define CROSSWEAVE_PLUGIN_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(_WIN32)
#define CW_EXPORT __declspec(dllexport)
#else
#define CW_EXPORT __attribute__((visibility("default")))
#endif

/* CW_MANIFEST("name=acme;vendor=Acme;interfaces=crossweave.device/1;needs=libacme.so.3") at file scope: what the host
 * reads from the file without loading it. `needs` names libraries the plugin opens itself at run time ("a|b" = either). */
#if defined(_MSC_VER)
#pragma section(".crsswv", read)
#define CW_SECTION __declspec(allocate(".crsswv"))
#elif defined(_WIN32)
#define CW_SECTION __attribute__((used, section(".crsswv")))
#elif defined(__APPLE__)
#define CW_SECTION __attribute__((used, section("__DATA,__crossweave")))
#else
#define CW_SECTION __attribute__((used, section(".crossweave")))
#endif
#define CW_MANIFEST(text) CW_SECTION static const char cw_manifest[] = "crossweave-plugin;abi=1.0;" text

#define CW_ABI_MINOR 0u                       /* the major version is in the symbol name */
#define CW_ENTRY_NAME "crossweave_plugin_v1"
#define CW_HANDLE(n) typedef struct n##_impl *n
CW_HANDLE(cw_device);
CW_HANDLE(cw_mem);
CW_HANDLE(cw_stream);
CW_HANDLE(cw_event);
CW_HANDLE(cw_op);
CW_HANDLE(cw_comm);
CW_HANDLE(cw_graph);

/* ------------------------------------------------------------------ status */
typedef int32_t cw_status;
#define CW_OK             ((cw_status)0)
#define CW_NOT_READY      ((cw_status)1)    /* a state, not an error: work is pending, a key is unset */
#define CW_E_UNSUPPORTED  ((cw_status)-1)   /* not provided; nothing has happened (R6) */
#define CW_E_INVALID      ((cw_status)-2)   /* the caller broke the contract */
#define CW_E_OOM          ((cw_status)-3)   /* the device stays usable; usually CW_ERRF_RETRYABLE */
#define CW_E_DEVICE_LOST  ((cw_status)-4)   /* always CW_ERRF_STICKY */
#define CW_E_COMM         ((cw_status)-5)   /* a communicator failed; peer_rank if known */
#define CW_E_TIMEOUT      ((cw_status)-6)   /* the timeout given passed */
#define CW_E_ABORTED      ((cw_status)-7)   /* the communicator was aborted */
#define CW_E_INTERNAL     ((cw_status)-8)   /* a bug of the plugin or of its vendor library */
#define CW_E_PANIC        ((cw_status)-9)   /* a panic or exception, caught at the boundary (R5) */
#define CW_E_VERSION      ((cw_status)-10)  /* host and plugin do not fit; the message carries both numbers */
#define CW_ERRF_STICKY     1u   /* the handle is dead: device or communicator must be re-created */
#define CW_ERRF_RETRYABLE  2u   /* same call may succeed later (after freeing memory, after a peer returns) */
typedef struct cw_error {       /* caller-owned; texts are NUL-terminated; peer_rank is -1 when unknown */
  uint32_t size;
  cw_status code;
  int64_t vendor_code;
  uint32_t flags;
  int32_t peer_rank;
  char where_[48];
  char message[440];
} cw_error;
typedef struct cw_str { /* UTF-8, not NUL-terminated; borrowed for the call, names in cw_plugin are static */
  const char *ptr;
  uint64_t len;
} cw_str;
typedef struct cw_span { /* an operand; never a bare pointer. mem NULL = absent */
  cw_mem mem;
  uint64_t offset;
  uint64_t bytes;
} cw_span;
typedef struct cw_native { /* an object of the platform: pointer, fd, dma-buf, IPC handle, by `type` */
  uint32_t size;
  uint32_t type;
  uint64_t value[4];
  uint64_t bytes;
} cw_native;

/* ------------------------------------------------------------------ element types: storage bits in the low byte */
#define CW_DT_I8 0x0108u
#define CW_DT_U8 0x0208u
#define CW_DT_I32 0x0120u
#define CW_DT_U32 0x0220u
#define CW_DT_I64 0x0140u
#define CW_DT_U64 0x0240u
#define CW_DT_F16 0x0310u
#define CW_DT_BF16 0x0410u
#define CW_DT_F32 0x0320u
#define CW_DT_F64 0x0340u
#define CW_DT_F8E4M3 0x0508u            /* OCP, no infinities */
#define CW_DT_F8E5M2 0x0608u
#define CW_DT_F8E4M3FNUZ 0x0708u        /* other bias: same bits, other values; never mixed with OCP silently */
#define CW_DT_F8E5M2FNUZ 0x0808u
#define CW_DT_F4E2M1 0x0904u
#define CW_DT_F8E8M0 0x0A08u            /* block scales */
#define CW_MEM_DEVICE 1u
#define CW_MEM_HOST_PINNED 2u
#define CW_MEM_SYMMETRIC 3u     /* registered with communicators on allocation */
#define CW_NATIVE_HOST_POINTER 1u /* cw_native: value[0] is a host address of `bytes` bytes that outlive the import */
#define CW_CAP_UNIFIED 1u       /* host and device share memory: mem_map works on CW_MEM_DEVICE */
#define CW_CAP_HOST_PROGRESS 2u /* streams advance on host threads */
#define CW_CAP_DETERMINISTIC 4u /* CW_MATH_DETERMINISTIC is honoured by every claimed op */
#define CW_CAP_GRAPHS_PAY 8u    /* to launch a graph (crossweave.graph/1) costs the host less than to enqueue what it holds */
#define CW_CAP_ALIGNED_OPERANDS 16u /* operands of ops begin at multiples of cw_device_info.align: the host copies views that do not */

/* ------------------------------------------------------------------ host services, given to the plugin
 * Any of them may be NULL. A plugin uses these instead of the environment, its own thread pools and its own sockets. */
typedef struct cw_host {
  uint32_t size;
  uint32_t abi_minor;
  uint32_t min_plugin_minor; /* the plugin answers CW_E_VERSION when its own minor is less */
  uint32_t reserved;
  void *ctx;
  /* One log line. level: 1 error, 2 warning, 3 info, 4 debug, 5 trace. Any thread; does not block. */
  void (*log)(void *ctx, uint32_t level, cw_str target, cw_str message);
  /* A configuration value. Writes at most cap bytes and the full length; CW_NOT_READY = unset. Every read is recorded. */
  cw_status (*config_get)(void *ctx, cw_str key, char *out, uint64_t cap, uint64_t *len);
  /* Publishes a value to the other ranks; a key set again is replaced. */
  cw_status (*kv_set)(void *ctx, cw_str key, const void *value, uint64_t len);
  /* Waits for a value; at most cap bytes and the full length are written. Blocks up to timeout_ns, < 0 for ever. */
  cw_status (*kv_get)(void *ctx, cw_str key, void *out, uint64_t cap, uint64_t *len, int64_t timeout_ns);
  /* body over disjoint ranges of at most grain that cover [0, n), on the host's threads and this one. Blocks until done. */
  cw_status (*parallel_for)(void *ctx, uint64_t n, uint64_t grain, void (*body)(void *arg, uint64_t begin, uint64_t end),
                            void *arg);
  /* body once on a new long-lived thread of the host; it must end by cw_plugin.shutdown. */
  cw_status (*spawn)(void *ctx, void (*body)(void *arg), void *arg);
  /* Nanoseconds of a monotonic clock. */
  uint64_t (*now_ns)(void *ctx);
  /* Non-zero: the named place must fail now. Only under the conformance kit. */
  uint32_t (*fault_point)(void *ctx, cw_str name);
} cw_host;

/* ------------------------------------------------------------------ plugin, filled into host-owned storage */
typedef struct cw_plugin {
  uint32_t size;
  uint32_t abi_minor;
  uint32_t min_host_minor; /* the host refuses the plugin when its own minor is less */
  uint32_t reserved;
  cw_str name;
  cw_str version;
  cw_str vendor;
  void *self; /* opaque; passed back below, so that a layer can wrap many */
  /* A table by id, valid for ever, or NULL when not provided: "crossweave.device/1" (mandatory), "crossweave.ops/1",
   * "crossweave.collective/1", "crossweave.graph/1", "x.<vendor>.<name>/0". kit: abi */
  const void *(*get_interface)(void *self, cw_str id);
  /* Ends the plugin's threads; called at most once, after all handles are destroyed; may block until they have ended.
   * The library is never unmapped. kit: life */
  cw_status (*shutdown)(void *self, cw_error *err);
} cw_plugin;
/* crossweave_plugin_v1, the one exported symbol. Negotiates the minors, initialises once (a failed attempt leaves nothing
 * behind), fills `out`. Opens vendor libraries itself; a missing one is an error naming it. kit: abi, life */
typedef cw_status (*cw_entry_fn)(const cw_host *host, cw_plugin *out, cw_error *err);
/* crossweave_layer_v1: a plugin that wraps another one. One that gives out handles of its own answers NULL for interfaces it does not know: the
 * plugin inside would be given the layer's handles. */
typedef cw_status (*cw_layer_fn)(const cw_host *host, const cw_plugin *inner, cw_plugin *out, cw_error *err);

/* ------------------------------------------------------------------ crossweave.device/1   (opt) = may be NULL */
typedef struct cw_device_info {
  uint32_t size;
  uint32_t kind; /* 1 cpu, 2 gpu, 3 npu, 0 other */
  uint64_t mem_total;
  uint64_t mem_free;
  uint64_t caps; /* CW_CAP_* */
  uint32_t numa_node; /* UINT32_MAX = unknown */
  uint32_t align; /* of memory from mem_alloc with align 0, in bytes; of operands too with CW_CAP_ALIGNED_OPERANDS */
  uint8_t uuid[16];
  char name[64];
  char pci_bus_id[24];
  char arch[24];
} cw_device_info;
typedef struct cw_device_api {
  uint32_t size;
  uint32_t minor;
  /* Devices present; 0 is an answer. kit: life */
  cw_status (*device_count)(void *self, uint32_t *n, cw_error *err);
  /* Opens device `index`; the same one may be opened several times (ranks as threads). INVALID: no such device. kit: life */
  cw_status (*device_open)(void *self, uint32_t index, cw_device *out, cw_error *err);
  /* After all its memories, streams, events, ops and communicators. kit: life, leak */
  void (*device_close)(cw_device dev);
  /* Describes it; mem_free is a current reading. kit: abi, mem */
  cw_status (*device_info)(cw_device dev, cw_device_info *out, cw_error *err);
  /* (opt) A vendor attribute by key. cap 0 asks for the length. UNSUPPORTED: unknown key. The host asks for two, as text without a NUL,
   * and takes UNSUPPORTED for "yes": "collective.ready", "yes" or a sentence that says what is missing; "collective.shares_device", "no"
   * where ranks of one group must be on different devices. Otherwise ranks go through pinned memory and another's collectives. kit: abi */
  cw_status (*device_attr)(cw_device dev, cw_str key, void *out, uint64_t cap, uint64_t *len, cw_error *err);
  /* Uninitialised memory of CW_MEM_*; align 0 = the device's own. May block in the driver. UNSUPPORTED: kind; OOM. kit: mem */
  cw_status (*mem_alloc)(cw_device dev, uint32_t kind, uint64_t bytes, uint64_t align, cw_mem *out, cw_error *err);
  /* The host has made sure that no stream still uses it. kit: mem, leak */
  void (*mem_free)(cw_mem mem);
  /* Host address, the same one every time; host-visible kinds only, else UNSUPPORTED. kit: mem */
  cw_status (*mem_map)(cw_mem mem, void **host_ptr, cw_error *err);
  /* (opt) Wraps a native object; the object stays the caller's. UNSUPPORTED: unknown type. kit: mem */
  cw_status (*mem_import)(cw_device dev, const cw_native *native, cw_mem *out, cw_error *err);
  /* (opt) Exposes memory as `native_type`; the caller owns what it gets (an fd is closed by it). kit: mem */
  cw_status (*mem_export)(cw_mem mem, uint32_t native_type, cw_native *out, cw_error *err);
  /* An in-order queue; larger priority is more urgent, flags 0. kit: order */
  cw_status (*stream_create)(cw_device dev, int32_t priority, uint32_t flags, cw_stream *out, cw_error *err);
  /* The host has synchronised or given up the stream; work still queued may be dropped, host calls among it. kit: life */
  void (*stream_destroy)(cw_stream stream);
  /* OK: everything enqueued before has finished; NOT_READY; or the stream's failure, every time. Never blocks. kit: order, fault */
  cw_status (*stream_query)(cw_stream stream, cw_error *err);
  /* Blocks until done, failed or timeout_ns has passed (< 0 for ever, 0 = a query). TIMEOUT changes nothing; one that is the
   * stream's own failure is CW_ERRF_STICKY. kit: order, fault */
  cw_status (*stream_sync)(cw_stream stream, int64_t timeout_ns, cw_error *err);
  /* An event never recorded is complete. flags 0. kit: order */
  cw_status (*event_create)(cw_device dev, uint32_t flags, cw_event *out, cw_error *err);
  /* Records and waits that are enqueued stay valid. kit: life */
  void (*event_destroy)(cw_event event);
  /* Marks the stream's present end; replaces an earlier record but does not move waits on it. kit: order */
  cw_status (*event_record)(cw_event event, cw_stream stream, cw_error *err);
  /* Has the latest record been passed? OK or NOT_READY. Never blocks. kit: order */
  cw_status (*event_query)(cw_event event, cw_error *err);
  /* Blocks as stream_sync, for the latest record. kit: order */
  cw_status (*event_sync)(cw_event event, int64_t timeout_ns, cw_error *err);
  /* (opt) Nanoseconds between two completed records; INVALID when one is pending. kit: order */
  cw_status (*event_elapsed)(cw_event from, cw_event to, uint64_t *ns, cw_error *err);
  /* Later work of the stream waits for the latest record before this call, also of another device. kit: order */
  cw_status (*stream_wait_event)(cw_stream stream, cw_event event, cw_error *err);
  /* (opt) fn once, in stream order, also after a failure (with its status); it must not call the plugin. kit: order */
  cw_status (*stream_host_call)(cw_stream stream, void (*fn)(void *arg, cw_status status), void *arg, cw_error *err);
  /* (opt) Later work waits until the 64-bit word is at least that. A device that compares in a circle refuses 2^63 and more as
   * UNSUPPORTED. kit: order */
  cw_status (*stream_wait_value)(cw_stream stream, cw_span word, uint64_t at_least, cw_error *err);
  /* (opt) Writes the 64-bit word, visible to waiting streams; refuses what stream_wait_value refuses. kit: order */
  cw_status (*stream_write_value)(cw_stream stream, cw_span word, uint64_t value, cw_error *err);
  /* Equal lengths, any two kinds of one device, in stream order, never synchronous. kit: mem, order */
  cw_status (*copy)(cw_stream stream, cw_span dst, cw_span src, cw_error *err);
  /* `height` rows of `width` bytes, `dpitch` and `spitch` bytes apart. kit: mem */
  cw_status (*copy_2d)(cw_stream stream, cw_span dst, uint64_t dpitch, cw_span src, uint64_t spitch, uint64_t width,
                       uint64_t height, cw_error *err);
  /* (opt) Between two devices of this plugin. NULL: the host copies through pinned memory. kit: mem */
  cw_status (*copy_peer)(cw_stream stream, cw_span dst, cw_span src, cw_error *err);
  /* Repeats the low pattern_bytes (1, 2, 4, 8; else INVALID) of pattern. kit: mem */
  cw_status (*fill)(cw_stream stream, cw_span dst, uint64_t pattern, uint32_t pattern_bytes, cw_error *err);
  /* (opt) May `from` reach memory of `to`, and how fast; flags bit 0 = load/store, bit 1 = copy engine. kit: mem */
  cw_status (*peer_access)(cw_device from, cw_device to, uint32_t *flags, uint32_t *gbps, cw_error *err);
} cw_device_api;

/* ------------------------------------------------------------------ crossweave.ops/1; ids and params: crossweave_ops.h */
typedef struct cw_layout { /* strides in elements, 0 broadcasts; dtype 0 and rank 0 = operand absent; dims past rank are 0 */
  uint32_t size;
  uint32_t dtype;
  uint32_t rank; /* at most 8 */
  uint32_t flags; /* CW_LAYOUT_* */
  int64_t shape[8];
  int64_t stride[8];
} cw_layout;
#define CW_LAYOUT_CONTIGUOUS 1u /* dense, row-major */
#define CW_LAYOUT_MAY_ALIAS 2u  /* this output may share memory with an input (the op table says which) */
typedef struct cw_op_desc {
  uint32_t size;
  uint32_t op; /* id of crossweave_ops.h; an unknown one is UNSUPPORTED */
  uint32_t op_revision;
  uint32_t n_operands;
  const cw_layout *operands; /* in the op table's order */
  const void *params; /* the op's own size-prefixed struct; NULL = all defaults */
  uint64_t params_bytes;
  uint32_t math_flags; /* CW_MATH_* */
  uint32_t reserved;
} cw_op_desc;
#define CW_MATH_DETERMINISTIC 1u /* same inputs, same bits */
#define CW_MATH_TF32 2u          /* f32 products may drop mantissa bits */
typedef struct cw_op_plan {
  uint32_t size;
  uint32_t tier; /* 0 reference, 1 native, 2 tuned */
  uint64_t workspace_bytes;
  uint64_t est_ns; /* 0 = unknown */
  uint64_t error_class; /* CW_CLASS_*: the bound the kit holds it to */
} cw_op_plan;
typedef struct cw_ops_api {
  uint32_t size;
  uint32_t minor;
  /* Claims one op for these layouts and parameters and does all that can be done before launch; may block to compile.
   * UNSUPPORTED: any combination not implemented. kit: op */
  cw_status (*op_prepare)(cw_device dev, const cw_op_desc *desc, cw_op *out, cw_op_plan *plan, cw_error *err);
  /* Enqueues; operands in the prepared order, absent ones NULL; workspace of the planned size; `dyn` is the op's launch-time
   * struct and is read before return. Launches of one op on several streams are serialised by the host. kit: op, order */
  cw_status (*op_launch)(cw_op op, cw_stream stream, const cw_span *operands, uint32_t n, cw_span workspace,
                         const void *dyn, uint64_t dyn_bytes, cw_error *err);
  /* Launches already enqueued stay valid. kit: leak */
  void (*op_release)(cw_op op);
} cw_ops_api;

/* ------------------------------------------------------------------ crossweave.collective/1 */
#define CW_COLL_ALL_REDUCE 1u
#define CW_COLL_REDUCE_SCATTER 2u
#define CW_COLL_ALL_GATHER 3u
#define CW_COLL_BROADCAST 4u
#define CW_COLL_REDUCE 5u
#define CW_COLL_ALL_TO_ALL 6u
#define CW_COLL_ALL_TO_ALL_V 7u
#define CW_COLL_ALL_GATHER_V 8u
#define CW_COLL_SEND 9u
#define CW_COLL_RECV 10u
#define CW_COLL_BARRIER 11u
#define CW_RED_SUM 1u
#define CW_RED_PROD 2u
#define CW_RED_MIN 3u
#define CW_RED_MAX 4u
#define CW_RED_AVG 5u            /* sum divided by the ranks; refused for integers, never truncated */
#define CW_RED_PREMUL_SUM 6u     /* x*scale before the sum; scale is a host double or a device scalar */
#define CW_COLLF_ACC_F32 1u      /* flags: sum 16-bit floats in f32, round once */
typedef struct cw_coll_desc {
  uint32_t size;
  uint32_t kind;
  uint32_t dtype;
  uint32_t reduce;
  int32_t root;
  int32_t peer;
  uint64_t count; /* elements: the buffer; per rank received (reduce-scatter), sent (all-gather); per pair (all-to-all) */
  /* In place: equal spans; of all_gather send is this rank's part of recv, of reduce_scatter recv this rank's part of send. */
  cw_span send;
  cw_span recv;
  const uint64_t *send_counts; /* [nranks] elements; *_V only, as the next three */
  const uint64_t *send_offsets;
  const uint64_t *recv_counts;
  const uint64_t *recv_offsets;
  double scale;
  cw_span scale_dev;
  uint32_t flags;
  uint32_t reserved;
  uint64_t seq; /* the host's call number on this communicator */
} cw_coll_desc;
typedef struct cw_launch {
  uint32_t size;
  uint32_t n;
  cw_comm comm;
  cw_stream stream;
  const cw_coll_desc *descs;
} cw_launch;
typedef struct cw_coll_support { /* estimates, 0 = unknown; max_bytes 0 = no limit */
  uint32_t size;
  uint32_t tier;
  uint64_t flags;
  uint64_t latency_ns;
  uint64_t bytes_per_s;
  uint64_t max_bytes;
} cw_coll_support;
typedef struct cw_comm_config {
  uint32_t size;
  int32_t rank;
  int32_t nranks;
  uint32_t flags;
  int64_t timeout_ns; /* for connecting and for each collective; <= 0: none */
  cw_str kv_prefix;   /* for the plugin's own exchange through kv_set/kv_get */
  cw_str name;        /* for messages; "carrier.world": all processes of the launcher in its order, joined without the store */
} cw_comm_config;
typedef struct cw_collective_api {
  uint32_t size;
  uint32_t minor;
  /* A fresh id of any length. cap 0 asks for the length and burns no id; a cap too small is INVALID with the length. kit: coll */
  cw_status (*unique_id)(cw_device dev, void *out, uint64_t cap, uint64_t *len, cw_error *err);
  /* Joins; may return while still connecting. INVALID: rank or nranks. COMM, TIMEOUT: peers. kit: coll, fault */
  cw_status (*comm_init)(cw_device dev, const void *id, uint64_t id_len, const cw_comm_config *cfg, cw_comm *out,
                         cw_error *err);
  /* (opt) Members of one color, ordered by key, equal keys by rank.
   * color < 0 takes part and gets NULL. Blocks up to the timeout. kit: coll */
  cw_status (*comm_split)(cw_comm comm, int32_t color, int32_t key, const cw_comm_config *cfg, cw_comm *out,
                          cw_error *err);
  /* Would launch take this kind, dtype, reduce, count, flags? Operands are not looked at; no side effects. Must agree with
   * launch, and on every rank. UNSUPPORTED: the core composes it. kit: coll */
  cw_status (*comm_query)(cw_comm comm, const cw_coll_desc *desc, cw_coll_support *out, cw_error *err);
  /* OK, NOT_READY while connecting, or the failure with its peer. Never blocks. kit: fault */
  cw_status (*comm_async_error)(cw_comm comm, cw_error *err);
  /* Any thread, never blocks: marks the communicator and releases enqueued work. Frees nothing. Peers need not
   * learn of it: to them a member does not come. kit: fault */
  cw_status (*comm_abort)(cw_comm comm, cw_error *err);
  /* Frees; after abort it does not wait for peers. kit: fault, leak */
  void (*comm_destroy)(cw_comm comm);
  /* Enqueues n collectives as one group: all or nothing. Every rank receives the same bits. kit: coll, order */
  cw_status (*launch)(cw_comm comm, cw_stream stream, const cw_coll_desc *descs, uint32_t n, cw_error *err);
  /* (opt) Groups of several communicators driven by one thread. kit: coll */
  cw_status (*launch_multi)(const cw_launch *launches, uint32_t n, cw_error *err);
  /* (opt) Registers memory for faster transfers. kit: coll */
  cw_status (*mem_register)(cw_comm comm, cw_span span, uint64_t *token, cw_error *err);
  /* (opt) kit: coll, leak */
  cw_status (*mem_unregister)(cw_comm comm, uint64_t token, cw_error *err);
  /* (opt) Links to the peers; reserved for a later minor, NULL in 1.0. */
  cw_status (*topology)(cw_comm comm, void *out, uint64_t cap, uint64_t *len, cw_error *err);
} cw_collective_api;

/* ------------------------------------------------------------------ crossweave.graph/1
 * What a stream was given once, enqueued again by one call. Between begin and end the stream takes op_launch, copy, copy_2d and fill: they
 * are checked as ever and kept with their operands and launch-time parameters, and do not run. What a graph cannot hold (host calls, words,
 * events recorded or waited for, collectives, copies between devices, or an op of which the vendor's library says so) is UNSUPPORTED and
 * changes nothing; the capture goes on. One thread begins, gives and ends, and makes, maps and frees nothing meanwhile. Other threads may ask
 * for the stream's and its events' state: the answer is that of what was enqueued before, or NOT_READY. A stream destroyed while it captures
 * forgets what it kept. The host launches a graph only while the memory it names is alive, and keeps its ops until it has released it.
 * kit: order */
typedef struct cw_graph_api {
  uint32_t size;
  uint32_t minor;
  /* From here on the stream keeps what it is given. INVALID: it does so already. */
  cw_status (*capture_begin)(cw_stream stream, cw_error *err);
  /* What was kept, as a graph of the stream's device; it may be empty. The capture is over also where this fails. INVALID: no
   * capture. UNSUPPORTED: what was kept is no graph. */
  cw_status (*capture_end)(cw_stream stream, cw_graph *out, cw_error *err);
  /* Enqueues all of it, in the captured order, as one call on any stream of the graph's device; it may be launched again at once. Launches
   * of one graph are serialised by the host. UNSUPPORTED: the stream is capturing. INVALID: it is another device's. */
  cw_status (*graph_launch)(cw_graph graph, cw_stream stream, cw_error *err);
  /* Launches already enqueued stay valid. */
  void (*graph_release)(cw_graph graph);
} cw_graph_api;

/* ------------------------------------------------------------------ layout, checked by every vendor's compiler */
#if defined(__cplusplus)
#define CW_ASSERT_AT(type, field, at) static_assert(offsetof(type, field) == (at), #type "." #field)
#define CW_ASSERT_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#else
#define CW_ASSERT_AT(type, field, at) _Static_assert(offsetof(type, field) == (at), #type "." #field)
#define CW_ASSERT_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#endif
CW_ASSERT_SIZE(cw_error, 512);
CW_ASSERT_AT(cw_error, size, 0);
CW_ASSERT_AT(cw_error, code, 4);
CW_ASSERT_AT(cw_error, vendor_code, 8);
CW_ASSERT_AT(cw_error, flags, 16);
CW_ASSERT_AT(cw_error, peer_rank, 20);
CW_ASSERT_AT(cw_error, where_, 24);
CW_ASSERT_AT(cw_error, message, 72);
CW_ASSERT_SIZE(cw_str, 16);
CW_ASSERT_AT(cw_str, ptr, 0);
CW_ASSERT_AT(cw_str, len, 8);
CW_ASSERT_SIZE(cw_span, 24);
CW_ASSERT_AT(cw_span, mem, 0);
CW_ASSERT_AT(cw_span, offset, 8);
CW_ASSERT_AT(cw_span, bytes, 16);
CW_ASSERT_SIZE(cw_native, 48);
CW_ASSERT_AT(cw_native, size, 0);
CW_ASSERT_AT(cw_native, type, 4);
CW_ASSERT_AT(cw_native, value, 8);
CW_ASSERT_AT(cw_native, bytes, 40);
CW_ASSERT_SIZE(cw_host, 88);
CW_ASSERT_AT(cw_host, size, 0);
CW_ASSERT_AT(cw_host, abi_minor, 4);
CW_ASSERT_AT(cw_host, min_plugin_minor, 8);
CW_ASSERT_AT(cw_host, reserved, 12);
CW_ASSERT_AT(cw_host, ctx, 16);
CW_ASSERT_AT(cw_host, log, 24);
CW_ASSERT_AT(cw_host, config_get, 32);
CW_ASSERT_AT(cw_host, kv_set, 40);
CW_ASSERT_AT(cw_host, kv_get, 48);
CW_ASSERT_AT(cw_host, parallel_for, 56);
CW_ASSERT_AT(cw_host, spawn, 64);
CW_ASSERT_AT(cw_host, now_ns, 72);
CW_ASSERT_AT(cw_host, fault_point, 80);
CW_ASSERT_SIZE(cw_plugin, 88);
CW_ASSERT_AT(cw_plugin, size, 0);
CW_ASSERT_AT(cw_plugin, abi_minor, 4);
CW_ASSERT_AT(cw_plugin, min_host_minor, 8);
CW_ASSERT_AT(cw_plugin, reserved, 12);
CW_ASSERT_AT(cw_plugin, name, 16);
CW_ASSERT_AT(cw_plugin, version, 32);
CW_ASSERT_AT(cw_plugin, vendor, 48);
CW_ASSERT_AT(cw_plugin, self, 64);
CW_ASSERT_AT(cw_plugin, get_interface, 72);
CW_ASSERT_AT(cw_plugin, shutdown, 80);
CW_ASSERT_SIZE(cw_device_info, 168);
CW_ASSERT_AT(cw_device_info, size, 0);
CW_ASSERT_AT(cw_device_info, kind, 4);
CW_ASSERT_AT(cw_device_info, mem_total, 8);
CW_ASSERT_AT(cw_device_info, mem_free, 16);
CW_ASSERT_AT(cw_device_info, caps, 24);
CW_ASSERT_AT(cw_device_info, numa_node, 32);
CW_ASSERT_AT(cw_device_info, align, 36);
CW_ASSERT_AT(cw_device_info, uuid, 40);
CW_ASSERT_AT(cw_device_info, name, 56);
CW_ASSERT_AT(cw_device_info, pci_bus_id, 120);
CW_ASSERT_AT(cw_device_info, arch, 144);
CW_ASSERT_SIZE(cw_device_api, 240);
CW_ASSERT_AT(cw_device_api, size, 0);
CW_ASSERT_AT(cw_device_api, minor, 4);
CW_ASSERT_AT(cw_device_api, device_count, 8);
CW_ASSERT_AT(cw_device_api, device_open, 16);
CW_ASSERT_AT(cw_device_api, device_close, 24);
CW_ASSERT_AT(cw_device_api, device_info, 32);
CW_ASSERT_AT(cw_device_api, device_attr, 40);
CW_ASSERT_AT(cw_device_api, mem_alloc, 48);
CW_ASSERT_AT(cw_device_api, mem_free, 56);
CW_ASSERT_AT(cw_device_api, mem_map, 64);
CW_ASSERT_AT(cw_device_api, mem_import, 72);
CW_ASSERT_AT(cw_device_api, mem_export, 80);
CW_ASSERT_AT(cw_device_api, stream_create, 88);
CW_ASSERT_AT(cw_device_api, stream_destroy, 96);
CW_ASSERT_AT(cw_device_api, stream_query, 104);
CW_ASSERT_AT(cw_device_api, stream_sync, 112);
CW_ASSERT_AT(cw_device_api, event_create, 120);
CW_ASSERT_AT(cw_device_api, event_destroy, 128);
CW_ASSERT_AT(cw_device_api, event_record, 136);
CW_ASSERT_AT(cw_device_api, event_query, 144);
CW_ASSERT_AT(cw_device_api, event_sync, 152);
CW_ASSERT_AT(cw_device_api, event_elapsed, 160);
CW_ASSERT_AT(cw_device_api, stream_wait_event, 168);
CW_ASSERT_AT(cw_device_api, stream_host_call, 176);
CW_ASSERT_AT(cw_device_api, stream_wait_value, 184);
CW_ASSERT_AT(cw_device_api, stream_write_value, 192);
CW_ASSERT_AT(cw_device_api, copy, 200);
CW_ASSERT_AT(cw_device_api, copy_2d, 208);
CW_ASSERT_AT(cw_device_api, copy_peer, 216);
CW_ASSERT_AT(cw_device_api, fill, 224);
CW_ASSERT_AT(cw_device_api, peer_access, 232);
CW_ASSERT_SIZE(cw_layout, 144);
CW_ASSERT_AT(cw_layout, size, 0);
CW_ASSERT_AT(cw_layout, dtype, 4);
CW_ASSERT_AT(cw_layout, rank, 8);
CW_ASSERT_AT(cw_layout, flags, 12);
CW_ASSERT_AT(cw_layout, shape, 16);
CW_ASSERT_AT(cw_layout, stride, 80);
CW_ASSERT_SIZE(cw_op_desc, 48);
CW_ASSERT_AT(cw_op_desc, size, 0);
CW_ASSERT_AT(cw_op_desc, op, 4);
CW_ASSERT_AT(cw_op_desc, op_revision, 8);
CW_ASSERT_AT(cw_op_desc, n_operands, 12);
CW_ASSERT_AT(cw_op_desc, operands, 16);
CW_ASSERT_AT(cw_op_desc, params, 24);
CW_ASSERT_AT(cw_op_desc, params_bytes, 32);
CW_ASSERT_AT(cw_op_desc, math_flags, 40);
CW_ASSERT_AT(cw_op_desc, reserved, 44);
CW_ASSERT_SIZE(cw_op_plan, 32);
CW_ASSERT_AT(cw_op_plan, size, 0);
CW_ASSERT_AT(cw_op_plan, tier, 4);
CW_ASSERT_AT(cw_op_plan, workspace_bytes, 8);
CW_ASSERT_AT(cw_op_plan, est_ns, 16);
CW_ASSERT_AT(cw_op_plan, error_class, 24);
CW_ASSERT_SIZE(cw_ops_api, 32);
CW_ASSERT_AT(cw_ops_api, size, 0);
CW_ASSERT_AT(cw_ops_api, minor, 4);
CW_ASSERT_AT(cw_ops_api, op_prepare, 8);
CW_ASSERT_AT(cw_ops_api, op_launch, 16);
CW_ASSERT_AT(cw_ops_api, op_release, 24);
CW_ASSERT_SIZE(cw_coll_desc, 160);
CW_ASSERT_AT(cw_coll_desc, size, 0);
CW_ASSERT_AT(cw_coll_desc, kind, 4);
CW_ASSERT_AT(cw_coll_desc, dtype, 8);
CW_ASSERT_AT(cw_coll_desc, reduce, 12);
CW_ASSERT_AT(cw_coll_desc, root, 16);
CW_ASSERT_AT(cw_coll_desc, peer, 20);
CW_ASSERT_AT(cw_coll_desc, count, 24);
CW_ASSERT_AT(cw_coll_desc, send, 32);
CW_ASSERT_AT(cw_coll_desc, recv, 56);
CW_ASSERT_AT(cw_coll_desc, send_counts, 80);
CW_ASSERT_AT(cw_coll_desc, send_offsets, 88);
CW_ASSERT_AT(cw_coll_desc, recv_counts, 96);
CW_ASSERT_AT(cw_coll_desc, recv_offsets, 104);
CW_ASSERT_AT(cw_coll_desc, scale, 112);
CW_ASSERT_AT(cw_coll_desc, scale_dev, 120);
CW_ASSERT_AT(cw_coll_desc, flags, 144);
CW_ASSERT_AT(cw_coll_desc, reserved, 148);
CW_ASSERT_AT(cw_coll_desc, seq, 152);
CW_ASSERT_SIZE(cw_launch, 32);
CW_ASSERT_AT(cw_launch, size, 0);
CW_ASSERT_AT(cw_launch, n, 4);
CW_ASSERT_AT(cw_launch, comm, 8);
CW_ASSERT_AT(cw_launch, stream, 16);
CW_ASSERT_AT(cw_launch, descs, 24);
CW_ASSERT_SIZE(cw_coll_support, 40);
CW_ASSERT_AT(cw_coll_support, size, 0);
CW_ASSERT_AT(cw_coll_support, tier, 4);
CW_ASSERT_AT(cw_coll_support, flags, 8);
CW_ASSERT_AT(cw_coll_support, latency_ns, 16);
CW_ASSERT_AT(cw_coll_support, bytes_per_s, 24);
CW_ASSERT_AT(cw_coll_support, max_bytes, 32);
CW_ASSERT_SIZE(cw_comm_config, 56);
CW_ASSERT_AT(cw_comm_config, size, 0);
CW_ASSERT_AT(cw_comm_config, rank, 4);
CW_ASSERT_AT(cw_comm_config, nranks, 8);
CW_ASSERT_AT(cw_comm_config, flags, 12);
CW_ASSERT_AT(cw_comm_config, timeout_ns, 16);
CW_ASSERT_AT(cw_comm_config, kv_prefix, 24);
CW_ASSERT_AT(cw_comm_config, name, 40);
CW_ASSERT_SIZE(cw_collective_api, 104);
CW_ASSERT_AT(cw_collective_api, size, 0);
CW_ASSERT_AT(cw_collective_api, minor, 4);
CW_ASSERT_AT(cw_collective_api, unique_id, 8);
CW_ASSERT_AT(cw_collective_api, comm_init, 16);
CW_ASSERT_AT(cw_collective_api, comm_split, 24);
CW_ASSERT_AT(cw_collective_api, comm_query, 32);
CW_ASSERT_AT(cw_collective_api, comm_async_error, 40);
CW_ASSERT_AT(cw_collective_api, comm_abort, 48);
CW_ASSERT_AT(cw_collective_api, comm_destroy, 56);
CW_ASSERT_AT(cw_collective_api, launch, 64);
CW_ASSERT_AT(cw_collective_api, launch_multi, 72);
CW_ASSERT_AT(cw_collective_api, mem_register, 80);
CW_ASSERT_AT(cw_collective_api, mem_unregister, 88);
CW_ASSERT_AT(cw_collective_api, topology, 96);
CW_ASSERT_SIZE(cw_graph_api, 40);
CW_ASSERT_AT(cw_graph_api, size, 0);
CW_ASSERT_AT(cw_graph_api, minor, 4);
CW_ASSERT_AT(cw_graph_api, capture_begin, 8);
CW_ASSERT_AT(cw_graph_api, capture_end, 16);
CW_ASSERT_AT(cw_graph_api, graph_launch, 24);
CW_ASSERT_AT(cw_graph_api, graph_release, 32);
#ifdef __cplusplus
}
#endif
#endif
