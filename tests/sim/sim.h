/* The simulators of vendors' run times: what the core does for every vendor. A skin exports the vendor's functions over it, and says which
 * device is current. They are simulators: nothing they show says anything of a device. */
#pragma once
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int st;
typedef uint64_t addr;
typedef struct stream stream;
typedef struct event event;
typedef struct graph graph;
typedef struct module module;
typedef struct function function;
/* `peers`: devices whose memory it reaches; `dead`: the status that ended it. */
typedef struct device { int index, retained, dead, peers; } device;

/* Numbers that CUDA and HIP have in common. */
enum { DEVICES = 8, OK = 0, INVALID = 1, OOM = 2, NO_DEVICE = 100, BAD_DEVICE = 101, BAD_IMAGE = 200, NO_CONTEXT = 201, BAD_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
       PEER_ALREADY = 704, PINNED_ALREADY = 712, LAUNCH_FAILED = 719, UNSUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_WRONG_THREAD = 908 };
#define API __attribute__((visibility("default")))

/* ---- what a skin says */
/* The device that is current on this thread, or NULL. */
device *sim_here(void);
/* Threads of a warp or wave. */
extern const unsigned sim_warp;
/* Whether memory is freed only when the device stands still, as CUDA and HIP do it. */
extern const int sim_frees_wait;

/* ---- the core */
extern device sim_devices[DEVICES];
extern int sim_visible, sim_words, sim_newer;
extern size_t sim_most;
/* Where the host reaches what lies at an address of the device, whose own addresses fault when the host touches them. */
void *sim_real(addr a);

st core_room(size_t *free, size_t *total);
st core_reach(device *other);
st core_alloc(addr *p, size_t n);
st core_free(addr p);
st core_host_alloc(void **p, size_t n);
st core_host_free(void *p);
st core_host_register(void *p, size_t n);
st core_host_unregister(void *p);
st core_host_seen(addr *a, void *p);
st core_copy(addr to, addr from, size_t n, size_t dpitch, size_t spitch, size_t rows, stream *s);
/* What kind of memory an address lies in: 'd' device, 'h' pinned, 'r' registered, 'v' mapped; 0: none that is known. */
int core_kind(addr a, size_t n);
/* Of which device; -1: memory that is none that is known. */
int core_device(addr a);
/* Is what lies there, by the host's address, memory of a device that nobody has freed? */
int core_alive(const void *real);
st core_copy_peer(addr to, addr from, size_t n, stream *s);
st core_fill(addr to, size_t pitch, uint64_t value, unsigned width, size_t n, size_t rows, stream *s);
st core_stream(stream **p, int priority);
st core_stream_destroy(stream *s);
device *core_stream_device(const stream *s);
/* Throws away what is queued, except what a library does once; and whether it has since the last question. */
void core_stream_abort(stream *s);
int core_stream_aborted(stream *s);
st core_stream_query(stream *s);
st core_stream_wait(stream *s, event *e);
st core_host_func(stream *s, void (*fn)(void *), void *arg);
st core_wait_value(stream *s, addr a, uint64_t v);
st core_write_value(stream *s, addr a, uint64_t v);
/* `timed`: it takes times. */
st core_event(event **p, int timed);
st core_event_destroy(event *e);
st core_event_record(event *e, stream *s);
st core_event_query(event *e);
/* Has it been recorded at all? And on which stream last? */
int core_event_recorded(event *e);
const stream *core_event_stream(const event *e);
st core_event_elapsed(float *ms, event *a, event *b);
st core_capture_begin(stream *s);
st core_capture_end(stream *s, graph **out);
st core_graph_destroy(graph *g);
st core_graph_instantiate(graph **out, graph *g);
st core_graph_launch(graph *g, stream *s);
st core_granularity(size_t *n);
st core_physical(uint64_t *h, size_t n);
st core_physical_release(uint64_t h);
st core_physical_of(uint64_t *h, void *p);
st core_reserve(addr *a, size_t n);
st core_unreserve(addr a, size_t n);
st core_map(addr a, size_t n, uint64_t h);
st core_access(addr a, size_t n);
st core_unmap(addr a, size_t n);
st core_share(int *fd, uint64_t h);
st core_shared(uint64_t *h, int fd);
/* On the stream's thread: what a library does once, what it computes, and a kernel. `data` is the command's own, freed after it has run and copied
 * into graphs. */
void sim_enqueue(stream *s, void (*run)(void *), void *arg);
st core_compute(stream *s, st (*run)(void *data, device *d), void *data, size_t n);
st core_launch(stream *s, st (*run)(void *data, device *d), void *data, size_t n, const char *line);

/* ---- numbers of 16 bits */
float of_bf16(uint16_t h), of_f16(uint16_t h);
uint16_t to_bf16(float f), to_f16(float f);

/* ---- kernels */
/* The image of a translation unit: "compiled" into what computes on the host, or its text where launches are only written down. */
typedef struct image { char *bytes; size_t n; char *log; } image;
st sim_compile(const char *source, image *out);
st core_module(module **m, const void *bytes);
st core_module_unload(module *m);
st core_function(function **f, module *m, const char *name);
/* How much dynamic shared memory its blocks may have; what a launch wants beyond it is refused. */
void core_function_room(function *f, unsigned bytes);
st core_launch_kernel(function *f, const unsigned grid[3], const unsigned block[3], unsigned shared, stream *s, void **params);
